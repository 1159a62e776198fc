"""English prose without end: everyday life in a small town by the sea, where nobody ever says what they like best."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

_WORDS: dict[str, tuple[str, ...]] = {
    name: tuple(part.strip() for part in words.split(","))
    for name, words in {
        "who": "the harbor master, the schoolteacher, a retired surveyor, the baker's apprentice, one of the ferrymen, "
        "the librarian, a visiting engineer, the postwoman, an old carpenter, the head gardener, a young beekeeper, "
        "the night watchman, the organist, a traveling salesman, the town clerk, a botanist from the capital, "
        "the keeper of the archive, a group of children, a lobster fisherman, the clockmaker, the doctor's wife",
        "place": "the upper market, the tidal mill, the reading room, the eastern pier, the botanical garden, "
        "the weather station, the covered bridge, the chapel on the hill, the rope factory, the railway depot, "
        "the salt warehouse, the council hall, the lower lock, the signal tower, the seed store, the stone quarry, "
        "the empty theater, the fish hall, the nursery behind the school, the customs house",
        "thing": "a bundle of maps, the broken barometer, a crate of pears, three lengths of copper pipe, "
        "an unsigned letter, the ledger of the previous year, a sack of barley, the spare lantern, a coil of rope, "
        "several jars of honey, the minutes of the last meeting, a box of glass plates, the drawing of the new pump, "
        "an iron key, a basket of mussels, the timetable, a folding chair, two buckets of lime",
        "quality": "quiet, narrow, drafty, well kept, half forgotten, sunlit, crowded, whitewashed, low, spacious, "
        "plain, solid, weathered, orderly, damp, echoing",
        "when": "toward evening, before the first ferry, on the second Thursday of the month, after the autumn storms, "
        "during the dry weeks of June, in the middle of the night, as soon as the fog lifted, around noon, "
        "shortly after the bells had rung, at low tide, on the day of the audit, in the last days of winter",
        "topic": "the price of lamp oil, the depth of the channel, a new roof for the school, the migration of geese, "
        "the quality of the drinking water, a proposal to pave the square, the repair of the sea wall, "
        "the harvest of the inland villages, the rules of the reading room, the accuracy of the town clock, "
        "the width of the new street, a plan to plant lindens, the cost of coal, an error in the tide tables",
        "did": "inspected, measured, described, carried away, mislaid, repaired, borrowed, wrapped up, recorded, "
        "examined, sorted, returned, photographed, cataloged",
        "thought": "it would last another decade, the figures had been copied wrongly, nothing needed to be done, "
        "the matter should wait until spring, a second opinion was worth having, the old method had been better, "
        "somebody ought to write it down, the damage was smaller than feared, the work could be finished by Easter",
        "nature": "the swallows, a line of gray clouds, the smell of seaweed, a thin layer of frost, the sound of the "
        "foghorn, the scent of cut hay, a flock of starlings, long shadows, a warm southerly wind, fine sand",
        "number": "four, six, nine, eleven, fourteen, twenty, thirty, about forty, nearly sixty, more than a hundred",
        "trade": "coopers, weavers, pilots, masons, glaziers, millers, printers, tanners, boatbuilders, gardeners",
    }.items()
}

_FORMS = (
    "{when}, {who} {did} {thing} and left it near {place}.",
    "It was {quality} in {place}, and {nature} drifted in through the open door.",
    "{who} had {did} {thing} before anyone else arrived at {place}.",
    "At {place} there was a long discussion about {topic}.",
    "{who} was of the opinion that {thought}.",
    "Nobody could explain how {thing} had come to {place}.",
    "The path from {place} to {place} takes {number} minutes on foot, or half of that downhill.",
    "When {nature} reached {place}, {who} closed the shutters and went on working.",
    "For {number} years the {trade} of the town had met at {place} to talk about {topic}.",
    "{who} wrote a report on {topic}, which was read by {who} and then filed away.",
    "In the opinion of the {trade}, {topic} was a question of patience rather than of money.",
    "{when}, {nature} could be noticed as far away as {place}.",
    "The {trade} kept {thing} in a {quality} room above {place}.",
    "As {who} remarked {when}, {thought}.",
    "{number} people signed the letter about {topic}, although few of them had been to {place}.",
    "{who} paid for {thing} in small coins and asked about {topic}.",
    "The guide books mention {place} only in passing and call it {quality}.",
    "Since the flood, {place} has been {quality}, and the {trade} have moved closer to {place}.",
    "A notice on the door of {place} announced that {topic} would be decided {when}.",
    "While {who} {did} {thing}, {who} kept an eye on the weather.",
    "There are {number} steps between {place} and the water, and all of them are worn.",
    "It took {who} {number} days to find out that {thought}.",
    "The oldest drawing of {place} shows it {quality}, with {nature} in the background.",
    "{who} said little about {topic}, but {did} {thing} with great care.",
    "Whoever crosses the square {when} will hear the {trade} argue about {topic}.",
    "To reach {place}, one follows the canal and turns left behind {place}.",
)

_PARAGRAPH = (5, 9)


def write_prose(seed: int) -> Iterator[str]:
    """Sentences without end, the same ones for the same seed."""
    rng = random.Random(f"prose-{seed}")
    while True:
        # Within a paragraph no form comes twice.
        for form in rng.sample(_FORMS, rng.randint(*_PARAGRAPH)):
            yield _filled(form, rng)


def _filled(form: str, rng: random.Random) -> str:
    used: set[str] = set()

    def word(match: re.Match[str]) -> str:
        chosen = rng.choice([each for each in _WORDS[match[1]] if each not in used])
        used.add(chosen)
        return chosen

    text = re.sub(r"\{(\w+)\}", word, form)
    return text[:1].upper() + text[1:]
