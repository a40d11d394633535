import edu.anu.spice.SpiceArguments;
import edu.anu.spice.SpiceScorer;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * The official SPICE scorer, captions.json in and figures.json out. What it writes itself goes through a JavaScript
 * engine, which Java has not had since version 15. Its constructors are not public, hence the reflection.
 *
 *     java -cp spice-1.0.jar Spice.java captions.json figures.json
 */
class Spice {
    public static void main(String[] paths) throws Exception {
        var asks = SpiceArguments.class.getDeclaredConstructor(String[].class);
        var makes = SpiceScorer.class.getDeclaredConstructor();
        asks.setAccessible(true);
        makes.setAccessible(true);
        SpiceScorer scorer = makes.newInstance();
        scorer.scoreBatch(asks.newInstance((Object) new String[] {paths[0], "-silent"}));
        Files.writeString(Path.of(paths[1]), scorer.stats.toJSONString());
    }
}
