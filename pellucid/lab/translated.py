"""Sentences about pictures with their translations, written for the lab, and the translator of the package."""

from pellucid.ready import ReadyTranslator, load_translator

TRANSLATOR = "translator-en-de"
PAIRS = (
    ("A man rides a brown horse on the beach.", "Ein Mann reitet auf einem braunen Pferd am Strand."),
    ("Two dogs play with a red ball in the snow.", "Zwei Hunde spielen mit einem roten Ball im Schnee."),
    ("A woman in a blue jacket is holding a camera.", "Eine Frau in einer blauen Jacke hält eine Kamera."),
    ("A young girl with a yellow hat sits under a tree.", "Ein junges Mädchen mit gelbem Hut sitzt unter einem Baum."),
    ("Three children run across a green field.", "Drei Kinder rennen über ein grünes Feld."),
    ("An old man plays the guitar on the street.", "Ein alter Mann spielt auf der Straße Gitarre."),
    ("A black dog jumps into the water.", "Ein schwarzer Hund springt ins Wasser."),
    ("A boy and a girl are reading a book.", "Ein Junge und ein Mädchen lesen ein Buch."),
    ("Two women are sitting at a small table.", "Zwei Frauen sitzen an einem kleinen Tisch."),
    ("A man in a white shirt stands in front of a building.", "Ein Mann in einem weißen Hemd steht vor einem Gebäude."),
    ("A child throws a stick into the lake.", "Ein Kind wirft einen Stock in den See."),
    ("Four men are sitting in a boat.", "Vier Männer sitzen in einem Boot."),
    ("A woman with red hair drinks a glass of water.", "Eine Frau mit roten Haaren trinkt ein Glas Wasser."),
    ("A man is cooking in a small kitchen.", "Ein Mann kocht in einer kleinen Küche."),
    ("The baby sleeps on a white blanket.", "Das Baby schläft auf einer weißen Decke."),
    ("A boy with a helmet rides his bicycle on the street.", "Ein Junge mit Helm fährt auf der Straße Fahrrad."),
    ("Five people are waiting for the train.", "Fünf Personen warten auf den Zug."),
    ("A large brown dog runs through the grass.", "Ein großer brauner Hund rennt durch das Gras."),
    ("A woman sings into a microphone on a stage.", "Eine Frau singt auf einer Bühne in ein Mikrofon."),
    ("Two young men are playing soccer on the beach.", "Zwei junge Männer spielen Fußball am Strand."),
)  # fmt: skip

LONG_PAIRS = (
    ("Several hikers cross a wooden bridge high above a river while the sun sets behind the mountains.",
     "Mehrere Wanderer überqueren eine Holzbrücke hoch über dem Fluss, während die Sonne hinter Bergen untergeht."),
    ("A mechanic with dirty hands repairs the engine of an old truck in a dark garage.",
     "Ein Mechaniker mit schmutzigen Händen repariert in einer dunklen Werkstatt den Motor eines alten Lastwagens."),
    ("An elderly couple is sitting on a bench and feeding the birds in a crowded park.",
     "Ein älteres Paar sitzt auf einer Bank und füttert in einem vollen Park die Vögel."),
    ("A little boy blows out the candles on his birthday cake while his family is watching.",
     "Ein kleiner Junge bläst die Kerzen auf seinem Geburtstagskuchen aus, während seine Familie zusieht."),
    ("Firefighters are trying to put out a fire on the roof of a tall building.",
     "Feuerwehrleute versuchen, einen Brand auf dem Dach eines hohen Gebäudes zu löschen."),
    ("A teacher writes numbers on the blackboard and her students copy them into their notebooks.",
     "Eine Lehrerin schreibt Zahlen an die Tafel und ihre Schüler schreiben sie in ihre Hefte ab."),
    ("A surfer falls off his board as a huge wave breaks over him.",
     "Ein Surfer fällt von seinem Brett, als eine riesige Welle über ihm bricht."),
    ("People with colourful umbrellas hurry across the wet square in front of the station.",
     "Menschen mit bunten Regenschirmen eilen über den nassen Platz vor dem Bahnhof."),
    ("Two workers in orange vests are painting white lines on a new road at night.",
     "Zwei Arbeiter in orangefarbenen Westen malen nachts weiße Linien auf eine neue Straße."),
    ("A chef decorates a chocolate dessert with strawberries before it is served to the guests.",
     "Ein Koch verziert ein Schokoladendessert mit Erdbeeren, bevor es den Gästen serviert wird."),
    ("The goalkeeper dives to the left but the ball flies past him into the net.",
     "Der Torwart springt nach links, aber der Ball fliegt an ihm vorbei ins Netz."),
    ("A tired nurse drinks coffee from a paper cup in the hallway of a hospital.",
     "Eine müde Krankenschwester trinkt im Flur eines Krankenhauses Kaffee aus einem Pappbecher."),
)  # fmt: skip


def load_pairs(count: int, *, long: bool = False) -> tuple[ReadyTranslator, list[tuple[str, str]]]:
    """The translator, and the first of the sentences, those that are easy or those that are long."""
    return load_translator(TRANSLATOR), list((LONG_PAIRS if long else PAIRS)[:count])
