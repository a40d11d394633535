/* Writes down what a program does to the files below RECORDED_ROOT, in order, into RECORDED_LOG.

   A record: a letter, the lengths of two texts, a number, the file's inode (8 bytes each), and the texts.
   By the inode a file is known again that was renamed past this library, as Rust does by system calls of its own.
   C create or cut to nothing: path   W write: path, bytes, place   T cut: path, size   R rename: from, to
   U unlink: path   D remove folder: path   M make folder: path   S sync: path   X something not understood: its name */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static int out = -1;
static char root[PATH_MAX];
static size_t root_size;

__attribute__((constructor)) static void begin(void) {
    const char *where = getenv("RECORDED_ROOT"), *log = getenv("RECORDED_LOG");
    if (!where || !log || !realpath(where, root)) return;
    root_size = strlen(root);
    out = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static void put(const char *data, size_t size) {
    while (size) {
        ssize_t done = REAL(write)(out, data, size);
        if (done <= 0) abort();
        data += done, size -= done;
    }
}

static void note(char letter, const char *path, const char *data, uint64_t size, uint64_t number) {
    struct stat status;
    uint64_t inode = lstat(letter == 'R' ? data : path, &status) ? 0 : status.st_ino;
    uint64_t lengths[4] = {strlen(path), size, number, inode};
    put(&letter, 1), put((char *)lengths, sizeof lengths), put(path, lengths[0]), put(data, size);
}

static int inside(const char *path) {
    return out >= 0 && !strncmp(path, root, root_size) && (path[root_size] == '/' || !path[root_size]);
}

/* The whole path of a name in a folder, without links before its last part; empty if it lies elsewhere. */
static const char *resolve(int folder, const char *name, char *path) {
    char joined[PATH_MAX], parent[PATH_MAX], link[64];
    path[0] = 0;
    if (out < 0 || !name) return path;
    if (name[0] == '/') snprintf(joined, sizeof joined, "%s", name);
    else {
        char base[PATH_MAX] = "";
        if (folder == AT_FDCWD) { if (!getcwd(base, sizeof base)) return path; }
        else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t n = readlink(link, base, sizeof base - 1);
            if (n < 0) return path;
            base[n] = 0;
        }
        if (strlen(base) + strlen(name) + 2 > sizeof joined) return path;
        strcpy(joined, base), strcat(joined, "/"), strcat(joined, name);
    }
    size_t n = strlen(joined);
    while (n > 1 && joined[n - 1] == '/') joined[--n] = 0;
    char *last = strrchr(joined, '/');
    if (!last || last == joined) return path;
    *last = 0;
    if (!realpath(joined, parent)) return path;
    if (strlen(parent) + strlen(last + 1) + 2 > PATH_MAX) return path;
    strcpy(path, parent), strcat(path, "/"), strcat(path, last + 1);
    if (!inside(path)) path[0] = 0;
    return path;
}

static const char *path_of(int fd, char *path) {
    char link[64];
    path[0] = 0;
    if (out < 0 || fd < 0) return path;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    path[n < 0 ? 0 : n] = 0;
    if (!inside(path) || strstr(path, " (deleted)")) path[0] = 0;
    return path;
}

#define BEGIN int result; char path[PATH_MAX]; pthread_mutex_lock(&turn);
#define END pthread_mutex_unlock(&turn); return result;

static int open_at(int folder, const char *name, int flags, mode_t mode) {
    struct stat status;
    BEGIN
    resolve(folder, name, path);
    int changes = path[0] && (((flags & O_CREAT) && lstat(path, &status)) || (flags & O_TRUNC));
    result = REAL(openat)(folder, name, flags, mode);
    if (result >= 0 && changes) note('C', path, "", 0, 0);
    END
}

#define OPEN(function, before, folder, more)                                                                           \
    int function(before const char *name, int flags, ...) {                                                             \
        va_list rest;                                                                                                   \
        va_start(rest, flags);                                                                                          \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                          \
        va_end(rest);                                                                                                   \
        return open_at(folder, name, flags more, mode);                                                                 \
    }
#define COMMA ,
OPEN(open, , AT_FDCWD, )
OPEN(open64, , AT_FDCWD, | O_LARGEFILE)
OPEN(openat, int folder COMMA, folder, )
OPEN(openat64, int folder COMMA, folder, | O_LARGEFILE)
int creat(const char *name, mode_t mode) { return open_at(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }

static ssize_t written(int fd, const char *data, ssize_t done, off_t place) {
    char path[PATH_MAX];
    if (done > 0 && path_of(fd, path)[0])
        note('W', path, data, done, place >= 0 ? place : lseek(fd, 0, SEEK_CUR) - done);
    return done;
}

ssize_t write(int fd, const void *data, size_t size) {
    pthread_mutex_lock(&turn);
    ssize_t done = written(fd, data, REAL(write)(fd, data, size), -1);
    pthread_mutex_unlock(&turn);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t place) {
    pthread_mutex_lock(&turn);
    ssize_t done = written(fd, data, REAL(pwrite)(fd, data, size, place), place);
    pthread_mutex_unlock(&turn);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t place) { return pwrite(fd, data, size, place); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    if (!path_of(fd, path)[0]) return REAL(writev)(fd, parts, count);
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t done = write(fd, parts[i].iov_base, parts[i].iov_len);
        if (done < 0) return total ? total : done;
        total += done;
        if ((size_t)done < parts[i].iov_len) break;
    }
    return total;
}

int ftruncate(int fd, off_t size) {
    BEGIN
    result = REAL(ftruncate)(fd, size);
    if (!result && path_of(fd, path)[0]) note('T', path, "", 0, size);
    END
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    char target[PATH_MAX];
    BEGIN
    resolve(from, old, path), resolve(to, new, target);
    result = REAL(renameat2)(from, old, to, new, flags);
    if (!result && (path[0] || target[0])) {
        if (path[0] && target[0] && !flags) note('R', path, target, strlen(target), 0);
        else note('X', "rename in or out", "", 0, 0);
    }
    END
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int unlinkat(int folder, const char *name, int flags) {
    BEGIN
    resolve(folder, name, path);
    result = REAL(unlinkat)(folder, name, flags);
    if (!result && path[0]) note(flags & AT_REMOVEDIR ? 'D' : 'U', path, "", 0, 0);
    END
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int folder, const char *name, mode_t mode) {
    BEGIN
    resolve(folder, name, path);
    result = REAL(mkdirat)(folder, name, mode);
    if (!result && path[0]) note('M', path, "", 0, 0);
    END
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int fsync(int fd) {
    BEGIN
    result = REAL(fsync)(fd);
    if (!result && path_of(fd, path)[0]) note('S', path, "", 0, 0);
    END
}
int fdatasync(int fd) { return fsync(fd); }

/* What is not replayed is at least told. */
#define STRANGE(type, name, where, declared, ...)                                                                      \
    type name declared {                                                                                                \
        char path[PATH_MAX];                                                                                            \
        if (where) pthread_mutex_lock(&turn), note('X', #name, "", 0, 0), pthread_mutex_unlock(&turn);                   \
        return REAL(name)(__VA_ARGS__);                                                                                 \
    }
#define SHARED (prot & PROT_WRITE && flags & MAP_SHARED && path_of(fd, path)[0])
STRANGE(void *, mmap, SHARED, (void *at, size_t size, int prot, int flags, int fd, off_t place), at, size, prot, flags, fd, place)
STRANGE(void *, mmap64, SHARED, (void *at, size_t size, int prot, int flags, int fd, off64_t place), at, size, prot, flags, fd, place)
STRANGE(int, link, resolve(AT_FDCWD, new, path)[0], (const char *old, const char *new), old, new)
STRANGE(int, symlink, resolve(AT_FDCWD, new, path)[0], (const char *old, const char *new), old, new)
STRANGE(int, truncate, resolve(AT_FDCWD, name, path)[0], (const char *name, off_t size), name, size)
STRANGE(ssize_t, copy_file_range, path_of(to, path)[0], (int from, off64_t *a, int to, off64_t *b, size_t n, unsigned flags), from, a, to, b, n, flags)
STRANGE(ssize_t, sendfile, path_of(to, path)[0], (int to, int from, off_t *place, size_t n), to, from, place, n)
STRANGE(FILE *, fopen, mode[0] != 'r' && resolve(AT_FDCWD, name, path)[0], (const char *name, const char *mode), name, mode)
STRANGE(FILE *, fopen64, mode[0] != 'r' && resolve(AT_FDCWD, name, path)[0], (const char *name, const char *mode), name, mode)
