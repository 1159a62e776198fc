"""Questions of bAbI's first five tasks, asked where the facts have the answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from winnow.tasks.babilong.story import GIVERS, PEOPLE, ROOMS, Actions, Story


class Asked(NamedTuple):
    """Facts in their order, a question and its answer."""

    facts: list[str]
    question: str
    answer: str


Ask = Callable[[Story], tuple[str, str] | None]
"""A question about a story, with its answer; None where the facts have none."""

_WALKS = Actions(move=1)
_ERRANDS = Actions(move=0.45, take=0.75, leave=0.45, leave_there=0.2)
_LONG_ERRANDS = Actions(move=0.45, take=0.75, leave=0.45, take_there=0.2, leave_there=0.2)
_GIFTS = Actions(move=0.35, take=0.55, leave=0.25, give=0.65, leave_there=0.15)


class StoryTask(NamedTuple):
    """A task of stories."""

    people: tuple[str, ...]
    actions: Actions
    ask: Ask
    fewest: int
    most: int
    """Facts: an even number, each as likely, about as many as the published set has."""

    def draw(self, rng: random.Random, most: int | None) -> Asked:
        """A story of at most so many facts, but the fewest at least, with a question that it answers."""
        most = self.most if most is None else max(self.fewest, min(most, self.most))
        count = 2 * rng.randint(self.fewest // 2, most // 2)
        while True:
            story = Story(rng, self.people)
            for _ in range(count):
                story.go_on(self.actions)
            asked = self.ask(story)
            if asked is not None:
                return Asked(story.facts, *asked)


def _where_is_somebody(story: Story) -> tuple[str, str]:
    person = story.rng.choice(sorted(story.told_rooms))
    return f"Where is {person}?", story.told_rooms[person]


def _where_is_something(story: Story) -> tuple[str, str] | None:
    known = sorted(thing for thing, path in story.told_paths.items() if path)
    if not known:
        return None
    thing = story.rng.choice(known)
    return f"Where is the {thing}?", story.told_paths[thing][-1]


def _where_was_something(story: Story) -> tuple[str, str] | None:
    known = sorted(thing for thing, path in story.told_paths.items() if len(path) > 1)
    if not known:
        return None
    thing = story.rng.choice(known)
    path = story.told_paths[thing]
    # The last time in a room counts; mostly it is the room where the thing is now.
    places = [place for place in range(1, len(path)) if path[place] not in path[place + 1 :]]
    place = places[-1] if story.rng.random() < 0.75 else story.rng.choice(places)
    return f"Where was the {thing} before the {path[place]}?", path[place - 1]


def _who_gave_what(story: Story) -> tuple[str, str] | None:
    """About the last gift, so that no later one answers the question as well."""
    if not story.gifts:
        return None
    giver, thing, receiver = story.gifts[-1]
    return story.rng.choice(
        (
            (f"What did {giver} give to {receiver}?", thing),
            (f"Who received the {thing}?", receiver),
            (f"Who did {giver} give the {thing} to?", receiver),
            (f"Who gave the {thing} to {receiver}?", giver),
            (f"Who gave the {thing}?", giver),
        )
    )


_OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}


def _draw_directions(rng: random.Random, most: int | None) -> Asked:
    """Three rooms in a line: two facts, one of which answers."""
    rooms, direction = rng.sample(ROOMS, 3), rng.choice(("north", "east"))
    relations = [(rooms[1], direction, rooms[0]), (rooms[2], direction, rooms[1])]
    rng.shuffle(relations)
    told = [_either_way(relation, rng) for relation in relations]
    room, way, other = _either_way(rng.choice(relations), rng)
    question, answer = rng.choice(
        ((f"What is {way} of the {other}?", room), (f"What is the {room} {way} of?", other)),
    )
    return Asked([f"The {one} is {each} of the {two}." for one, each, two in told], question, answer)


def _either_way(relation: tuple[str, str, str], rng: random.Random) -> tuple[str, str, str]:
    """The relation as it is or, what is the same, from the other side."""
    room, way, other = relation
    return relation if rng.random() < 0.5 else (other, _OPPOSITE[way], room)


DRAWS: dict[str, Callable[[random.Random, int | None], Asked]] = {
    "qa1": StoryTask(PEOPLE, _WALKS, _where_is_somebody, 2, 10).draw,
    "qa2": StoryTask(PEOPLE, _ERRANDS, _where_is_something, 2, 30).draw,
    "qa3": StoryTask(PEOPLE, _LONG_ERRANDS, _where_was_something, 4, 104).draw,
    "qa4": _draw_directions,
    "qa5": StoryTask(GIVERS, _GIFTS, _who_gave_what, 4, 32).draw,
}
"""By task: a story of at most so many facts, or of any number, with a question."""
