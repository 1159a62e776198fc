"""Word lists of the synthetic retrieval tasks.

Every word of a generated document comes from these lists, so the lists also
define the word-level vocabulary of the bundled model.
"""

from __future__ import annotations

UNKNOWN, PADDING, BEGIN, END = "<unk>", "<pad>", "<s>", "</s>"
SPECIAL_TOKENS: tuple[str, ...] = (UNKNOWN, PADDING, BEGIN, END)

NAMES: tuple[str, ...] = tuple(
    """
    alice bob carol david emma frank grace henry irene jack karen leo maria nina oscar
    paula quentin rachel simon tina ursula victor wendy xavier yvonne zach adam bella
    carlos diana edgar fiona george hannah ivan julia kevin laura martin nora oliver
    peter queenie robert sarah thomas ulrich vera walter yasmin albert brenda claude
    doris edward felix gloria harold ingrid jacob kathy louis monica nathan olga philip
    rita samuel teresa urban valerie wilma yuri agnes boris cecil donna elliot flora
    gordon helen isaac joan kurt linda milton nancy otto priya ralph susan trevor una
    vincent wanda yolanda arthur betty conrad dora ernest frieda gustav hilda igor judith
    karl lena magnus nadia omar petra rufus sonia tobias uma viktor winona
    """.split()
)

# Each attribute has its own set of values; the sets are disjoint.
ATTRIBUTE_VALUES: dict[str, tuple[str, ...]] = {
    attribute: tuple(words.split())
    for attribute, words in {
        "fruit": "mango apple banana cherry grape lemon lime peach pear plum melon papaya fig "
        "apricot guava kiwi coconut raspberry blueberry pineapple quince nectarine tangerine lychee",
        "animal": "tiger lion zebra giraffe elephant rabbit camel donkey monkey panda koala badger "
        "otter hamster beaver leopard wolf horse goat kangaroo hedgehog squirrel buffalo moose",
        "city": "paris london berlin madrid rome vienna oslo dublin lisbon prague athens cairo "
        "tokyo delhi lima boston chicago denver sydney toronto havana moscow warsaw geneva",
        "sport": "tennis hockey soccer rugby golf boxing fencing rowing sailing skiing surfing "
        "cricket archery judo karate cycling swimming baseball volleyball badminton wrestling "
        "curling polo diving",
        "tool": "hammer wrench chisel saw drill axe shovel rake pliers ladder crowbar mallet "
        "sickle trowel anvil clamp tweezers scissors screwdriver pickaxe lathe spanner hoe wheelbarrow",
        "instrument": "piano violin guitar flute trumpet cello harp clarinet oboe banjo drum "
        "saxophone tuba accordion mandolin organ lute trombone bassoon ukulele xylophone bagpipe "
        "harmonica tambourine",
        "drink": "coffee tea milk cocoa juice lemonade cider water wine beer soda brandy whisky "
        "rum vodka punch smoothie espresso ale mead sherry port gin champagne",
        "flower": "tulip daisy orchid lotus poppy daffodil sunflower carnation peony marigold "
        "hyacinth geranium pansy primrose begonia lavender magnolia crocus snowdrop bluebell "
        "dahlia azalea petunia foxglove",
        "metal": "iron copper zinc nickel tin lead titanium chromium aluminum platinum mercury "
        "cobalt tungsten lithium bronze brass steel pewter magnesium uranium radium sodium "
        "potassium calcium",
        "gem": "diamond emerald sapphire opal topaz garnet amethyst pearl onyx agate jade "
        "turquoise quartz peridot zircon jasper moonstone malachite obsidian citrine beryl "
        "tourmaline spinel lapis",
        "tree": "oak maple birch pine cedar willow elm ash beech cypress spruce poplar redwood "
        "sycamore larch hemlock juniper acacia eucalyptus hickory alder linden teak ebony",
        "bird": "eagle sparrow robin falcon owl raven swan heron pelican parrot penguin flamingo "
        "stork magpie pigeon peacock ostrich vulture seagull kingfisher woodpecker nightingale "
        "starling canary",
        "fish": "salmon trout tuna cod herring sardine mackerel carp pike perch eel halibut "
        "anchovy haddock sturgeon catfish swordfish barracuda piranha flounder minnow bass "
        "marlin snapper",
        "game": "chess poker bridge checkers dominoes backgammon darts bingo marbles solitaire "
        "charades hopscotch tag monopoly scrabble roulette blackjack mahjong canasta billiards "
        "croquet bowling dice rummy",
        "dance": "waltz tango salsa polka rumba foxtrot samba ballet flamenco jive mambo swing "
        "bolero minuet mazurka quickstep merengue bachata quadrille disco charleston reel "
        "fandango gavotte",
        "food": "bread pasta rice soup pizza salad cheese stew curry noodles pancake omelette "
        "sandwich burger sausage porridge lasagna risotto dumpling waffle biscuit pretzel "
        "pudding goulash",
    }.items()
}
ATTRIBUTES: tuple[str, ...] = tuple(ATTRIBUTE_VALUES)
VALUES: tuple[str, ...] = tuple(v for values in ATTRIBUTE_VALUES.values() for v in values)

# Kinds of the single needles; each occurs at most once in a document.
SECRETS: tuple[str, ...] = tuple(
    "password codeword treasure emblem motto prize souvenir ransom offering monument gift "
    "passphrase relic trophy mascot riddle".split()
)
PLACES: tuple[str, ...] = tuple(
    "harbor castle library market station museum garden temple tower village theater bakery "
    "hospital school factory palace cottage stadium chapel lighthouse windmill tavern farm "
    "prison".split()
)

COMPARATIVES: tuple[str, ...] = tuple("older taller faster richer stronger wiser".split())

VARIABLES: tuple[str, ...] = tuple(
    first + last for first in "ba de fi go ku la me ni po ru so ta vi wu za".split() for last in ("x", "k", "z", "q")
)
COLORS: tuple[str, ...] = tuple(
    "red blue green yellow purple pink black white gray brown crimson violet beige maroon "
    "scarlet indigo teal olive khaki magenta azure ivory amber cyan".split()
)

# Words of the filler sentences.
ADJECTIVES: tuple[str, ...] = tuple(
    "old quiet narrow dusty bright empty crowded famous distant muddy sunny gloomy wooden "
    "broken ancient little busy frozen hidden charming shabby windy foggy lonely".split()
)
MOVES: tuple[str, ...] = tuple(
    "walked traveled hurried wandered returned drove strolled marched cycled climbed raced drifted".split()
)
ACTIONS: tuple[str, ...] = tuple(
    "bought sold found lost painted borrowed described noticed mentioned carried dropped photographed".split()
)
OBJECTS: tuple[str, ...] = tuple(
    "letter basket window chair blanket lantern mirror notebook bottle curtain bucket envelope "
    "carpet pillow candle bell ticket map clock button painting umbrella wagon rope".split()
)
TIMES: tuple[str, ...] = tuple("yesterday today later then often finally soon once".split())
DAYS: tuple[str, ...] = tuple("monday tuesday wednesday thursday friday saturday sunday".split())
WEATHER: tuple[str, ...] = tuple("rain snow wind fog thunder sunshine hail frost".split())

FUNCTION_WORDS: tuple[str, ...] = tuple(
    """
    . , ? : a after again all and answer as at because before between but by comparing
    equals everybody everyone favorite for from had has in is it know knows near of on one
    or over people question remember said say says since somebody talked that the there to
    told toward value variable was well what where which while who whose with
    """.split()
)


def _unique(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


VOCABULARY: tuple[str, ...] = SPECIAL_TOKENS + _unique(
    FUNCTION_WORDS
    + NAMES
    + ATTRIBUTES
    + VALUES
    + SECRETS
    + PLACES
    + COMPARATIVES
    + VARIABLES
    + COLORS
    + ADJECTIVES
    + MOVES
    + ACTIONS
    + OBJECTS
    + TIMES
    + DAYS
    + WEATHER
)
