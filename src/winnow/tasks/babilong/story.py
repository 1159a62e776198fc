"""Stories of bAbI (Weston et al. 2015, arXiv 1502.05698): people and things in six rooms, told fact by fact.

The world knows where everything is from the beginning, the reader only what facts say. Forms of sentences and shares
of actions are those of the published set (tasks_1-20_v1-2, en-10k).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

ROOMS = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
THINGS = ("apple", "football", "milk")
PEOPLE = ("Daniel", "John", "Mary", "Sandra")
GIVERS = ("Bill", "Fred", "Jeff", "Mary")

MOVES = ("went", "journeyed", "travelled", "moved", "went back")
TAKES = ("took", "got", "grabbed", "picked up")
LEAVES = ("dropped", "left", "put down", "discarded")
GIVES = ("gave", "handed", "passed")


class Gift(NamedTuple):
    """Something that somebody gave to somebody."""

    giver: str
    thing: str
    receiver: str


class Actions(NamedTuple):
    """Relative frequencies of what people do, and of the word "there" after it."""

    move: float
    take: float = 0.0
    leave: float = 0.0
    give: float = 0.0
    take_there: float = 1.0
    leave_there: float = 0.25


@dataclass
class Story:
    """Facts in their order, and what they tell."""

    rng: random.Random
    people: Sequence[str]
    facts: list[str] = field(default_factory=list)
    told_rooms: dict[str, str] = field(default_factory=dict)
    """Rooms of people who were seen to go there."""
    told_paths: dict[str, list[str]] = field(default_factory=dict)
    """Rooms where each thing has been, as far as can be told, one after the other."""
    gifts: list[Gift] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rooms = {each: self.rng.choice(ROOMS) for each in (*self.people, *THINGS)}
        self._holders: dict[str, str] = {}

    def go_on(self, actions: Actions) -> None:
        """One more fact: whatever is possible, as often as the actions say."""
        while True:
            tell = self.rng.choices(
                (self._move, self._take, self._leave, self._give),
                (actions.move, actions.take, actions.leave, actions.give),
            )[0]
            fact = tell(actions)
            if fact:
                self.facts.append(fact)
                return

    def _move(self, actions: Actions) -> str:
        person = self.rng.choice(self.people)
        room = self.rng.choice([each for each in ROOMS if each != self._rooms[person]])
        self._rooms[person] = self.told_rooms[person] = room
        for thing in self._held_by(person):
            self._rooms[thing] = room
            self._tell(thing, person)
        return f"{person} {self.rng.choice(MOVES)} to the {room}."

    def _take(self, actions: Actions) -> str:
        person = self.rng.choice(self.people)
        there = [each for each in THINGS if each not in self._holders and self._rooms[each] == self._rooms[person]]
        if not there:
            return ""
        thing = self.rng.choice(there)
        self._holders[thing] = person
        self._tell(thing, person)
        return f"{person} {self.rng.choice(TAKES)} the {thing}{self._there(actions.take_there)}."

    def _leave(self, actions: Actions) -> str:
        person = self.rng.choice(self.people)
        held = self._held_by(person)
        if not held:
            return ""
        thing = self.rng.choice(held)
        del self._holders[thing]
        return f"{person} {self.rng.choice(LEAVES)} the {thing}{self._there(actions.leave_there)}."

    def _give(self, actions: Actions) -> str:
        giver = self.rng.choice(self.people)
        held = self._held_by(giver)
        near = [each for each in self.people if each != giver and self._rooms[each] == self._rooms[giver]]
        if not held or not near:
            return ""
        gift = Gift(giver, self.rng.choice(held), self.rng.choice(near))
        self._holders[gift.thing] = gift.receiver
        self._tell(gift.thing, gift.receiver)
        self.gifts.append(gift)
        return f"{giver} {self.rng.choice(GIVES)} the {gift.thing} to {gift.receiver}."

    def _held_by(self, person: str) -> list[str]:
        return [thing for thing in THINGS if self._holders.get(thing) == person]

    def _tell(self, thing: str, person: str) -> None:
        """The thing is where the person is, which can be told if the person was seen to go there."""
        room = self.told_rooms.get(person)
        path = self.told_paths.setdefault(thing, [])
        if room is not None and path[-1:] != [room]:
            path.append(room)

    def _there(self, share: float) -> str:
        return " there" if self.rng.random() < share else ""
