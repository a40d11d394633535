"""python stop_two.py FOLDER OPTIONS…: trains in two processes, stops one by a signal, and says how both ended."""

import signal
import sys
from pathlib import Path

from trainings import together, wait_for_steps

if __name__ == "__main__":
    folder, options = Path(sys.argv[1]), [word.replace("20 steps", "500 steps") for word in sys.argv[2:]]
    processes = together(folder, *options)
    wait_for_steps(folder, 1)
    processes[1].send(signal.SIGTERM)
    print(*[process.ended(40)[0] for process in processes])
