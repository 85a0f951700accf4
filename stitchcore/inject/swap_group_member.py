"""Joined steps: those of replicas that meet in collectives swap, and go back, together.

A member takes part in its group (swap_group.py) from the moment its artifact is loaded. It speaks
to the gateway until a count of passes N is agreed on, has the native timer hold there, and does at
N what the replicas' register says, all others doing the same. Nothing waits for it but the step at
N, and that only where no decision has been heard of by then. The watcher's thread calls `tick`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Protocol, Tuple

from . import (
    client,
    collectives,
    coordination_service,
    graphs,
    plugin,
    reasons,
    settings,
    swap_group,
)
from . import swap_start as swapper
from .program import (
    CANARY_BLOCK,
    CANARY_FIRST,
    FOREVER,
    ORIGINAL,
    STITCHED,
    Instance,
    Program,
    View,
)
from .swap_group import Decision, Heard, Place

PREPARING, GATHERING, HOLDING, SWAPPED, OUT = "preparing", "gathering", "holding", "swapped", "out"
LISTEN_INTERVALS = 10.0  # between messages of one that only listens, in those of an open round
RECENT = 64  # intervals that tell how long a step is
AGAIN_SECONDS = 5.0  # before a way back that came to nothing is asked for again
GATHER_SECONDS = 20.0  # then members that are missing are long in coming
LAST_SECONDS = 3600.0  # of a message that is meant to be the last one
HOLD_SECONDS = 10.0  # a step is never held longer, whatever becomes of the other replicas
RUN = "stitch/run"


class CoordinationService(Protocol):
    """The replicas' register (coordination_service.py)."""

    def read(self, key: str) -> Optional[str]: ...

    def decide(self, key: str, value: str) -> Optional[str]: ...


@dataclass(frozen=True)
class Parts:
    """What members act on. `rolled_back(instance, reason, detail)` reports one that has gone back,
    `refuse(digest, reason, detail)` says why there was no swap."""

    config: settings.Settings
    plugin: plugin.Plugin
    source: client.Source
    events: client.Events
    swapper: swapper.Swapper
    rolled_back: Callable[[Instance, str, str], None]
    refuse: Callable[[str, str, str], None]
    coordination: CoordinationService


class Member:
    """One joined step of this process. Raises nothing to the job; all but `ask_back` and
    `release` in the watcher's thread."""

    def __init__(self, instance: Instance, view: View, place: Place, parts: Parts) -> None:
        self._instance = instance
        self._view: Optional[View] = view
        self._place = place
        self._parts = parts
        self.state = PREPARING
        self.name = ""
        self._round, self._agreed = 1, 0
        self._begun = 0.0  # when the first round was
        self._again = 0.0  # when the next round may be begun
        self._wanted: Optional[Tuple[str, str]] = None  # why this replica wants the original

    def ask_back(self, reason: str, detail: str) -> None:
        """This replica wants its original: before a swap there will be none, and after one all
        replicas go back at an agreed step."""
        self._wanted = self._wanted or (reason, detail)

    def release(self) -> None:
        """Lets a held step go on with what it ran before: nobody has said anything for too long."""
        self._decide(Decision(swap_group.DROP, self._agreed))

    def tick(self) -> None:
        if self.state == PREPARING:
            self._prepare()
        if self.state in (PREPARING, OUT):
            return
        heard = self._parts.source.heard(self.name)
        if heard is not None and heard.round != self._round:
            heard = None
        {GATHERING: self._gather, HOLDING: self._settle, SWAPPED: self._listen}[self.state](heard)
        self._say()

    # Round by round

    def _prepare(self) -> None:
        """Acknowledges once the swap can no longer fail and the baseline has been run."""
        program, view = self._instance.program, self._view
        if self._wanted is not None:
            self._leave()
        elif program.ready and self._parts.swapper.due(self._instance):
            if view is not None:
                self._parts.swapper.rehearse(program, view)
                self._view = None
            run = self._parts.coordination.decide(RUN, os.urandom(8).hex())
            if run is not None:
                self.name = swap_group.name_of(self._place, run, program.digest)
                self.state, self._begun = GATHERING, time.monotonic()

    def _gather(self, heard: Optional[Heard]) -> None:
        if self._wanted is not None and self._round == 1:
            self._leave()
        elif heard is not None and heard.state == swap_group.ABORTED:
            self._dropped(heard.why)
        elif heard is not None and heard.state == swap_group.COMMITTED:
            self._dropped("the replicas have decided without this one")
        elif heard is not None and heard.state == swap_group.NAMED and heard.agreed > 0:
            # One that has passed N says so, and the gateway ends the round.
            if self._parts.plugin.hold(self._instance.step, heard.agreed):
                self._agreed, self.state = heard.agreed, HOLDING

    def _settle(self, heard: Optional[Heard]) -> None:
        """Proposes what it knows, or reads what another has; acts on what stands."""
        key = f"stitch/{self.name}/{self._round}"
        proposal, standing = self._proposal(heard), self._parts.coordination
        text = standing.decide(key, swap_group.encode(proposal)) if proposal else standing.read(key)
        if text is None:
            return
        try:
            decision = swap_group.decode(text)
        except reasons.Refused as error:  # the same for all who read it
            decision = Decision(swap_group.DROP, self._agreed, why=error.detail)
        if decision.agreed != self._agreed:
            decision = Decision(swap_group.DROP, self._agreed, why="of another step")
        self._act(decision)

    def _proposal(self, heard: Optional[Heard]) -> Optional[Decision]:
        if self._wanted is not None and self._round == 1:
            return Decision(swap_group.DROP, self._agreed, why=": ".join(self._wanted)[:200])
        if heard is not None and heard.state == swap_group.ABORTED:
            return Decision(swap_group.DROP, self._agreed, why=heard.why)
        if heard is not None and heard.state == swap_group.COMMITTED:
            return self._swap() if self._round == 1 else self._back()
        if self._instance.arm[0] == plugin.HELD:
            why = f"rank {self._place.rank} came to step {self._agreed} without word of a commit"
            return Decision(swap_group.DROP, self._agreed, why=why)
        return None

    def _swap(self) -> Decision:
        control, original = self._parts.config.control, CANARY_BLOCK
        if control <= 0:
            return Decision(swap_group.SWAP, self._agreed, 0, FOREVER)
        most = max(CANARY_FIRST, int(original / max(control, 1e-6)) - original)
        seed = swap_group.seed_of(self.name)
        return Decision(swap_group.SWAP, self._agreed, original, CANARY_FIRST, most, seed)

    def _back(self) -> Decision:
        why = ": ".join(self._wanted)[:200] if self._wanted else "another replica asked for it"
        return Decision(swap_group.BACK, self._agreed, why=why)

    def _act(self, decision: Decision) -> None:
        program, step = self._instance.program, self._passes()
        if decision.do == swap_group.SWAP and not self._parts.swapper.open(program):
            # The others swap: to stay behind would part the variables. All go back instead.
            self.ask_back(reasons.STORE_UNREADABLE, "the breaker cannot be written")
        if decision.do == swap_group.SWAP:
            self._instance.watch_memory(self._parts.plugin, self._parts.config.memory)
        in_time = self._decide(decision)
        fields = {"do": decision.do, "agreed": self._agreed, "told": step, "in_time": in_time}
        self._note(**fields, why=decision.why)
        if decision.do == swap_group.DROP:
            self._dropped(decision.why)
        elif decision.do == swap_group.BACK:
            if not in_time:
                self._parts.plugin.schedule(self._instance.step, ORIGINAL, FOREVER, 0)
            self._gone_back(decision)
        else:
            self.state = SWAPPED
            if not in_time:
                self.ask_back(reasons.SWAP_GROUP, f"step {self._agreed} went by undecided")

    def _decide(self, decision: Decision) -> bool:
        """Has the native timer do it at N; False when the held step was let go before."""
        arm = {swap_group.SWAP: STITCHED, swap_group.BACK: ORIGINAL, swap_group.DROP: -1}[
            decision.do
        ]
        blocks = (decision.original, decision.first, decision.most, decision.seed)
        if decision.do == swap_group.BACK:
            blocks = (FOREVER, 0, 0, 0)
        return self._parts.plugin.decide(self._instance.step, arm, *blocks)

    def _listen(self, heard: Optional[Heard]) -> None:
        """Begins the next round where this replica wants it, or joins another's."""
        if heard is not None and heard.latest > self._round:
            self._round, self.state = heard.latest, GATHERING
        elif self._wanted is not None and time.monotonic() >= self._again:
            self._round, self.state = self._round + 1, GATHERING

    # Ends

    def _dropped(self, why: str) -> None:
        """The round has come to nothing: there is no swap, or no way back yet."""
        if self._round > 1:
            self.state, self._again = SWAPPED, time.monotonic() + AGAIN_SECONDS
            return
        program = self._instance.program
        program.reason = program.reason or reasons.SWAP_GROUP
        if self.state == HOLDING:  # the gateway may not know: it counts what came to nothing
            self._parts.source.say(self._message(max(self._passes(), self._agreed)), LAST_SECONDS)
            self.state = OUT
        else:
            self._leave()
        self._parts.refuse(program.digest, reasons.SWAP_GROUP, why)

    def _gone_back(self, decision: Decision) -> None:
        self._leave()
        reason, detail = self._wanted or (reasons.SWAP_GROUP, decision.why)
        if self._instance.program.reason is None:
            self._parts.rolled_back(self._instance, reason, detail)

    def _leave(self) -> None:
        self.state, self._view = OUT, None
        self._parts.source.quiet(self.name)

    # Messages

    def _passes(self) -> int:
        """Steps that have begun: equal on all replicas, give or take the one under way."""
        step, native = self._instance.step, self._parts.plugin
        return native.passes(step, ORIGINAL) + native.passes(step, STITCHED)

    def _say(self) -> None:
        if self.state == OUT:
            return
        fields = self._message(self._passes())
        if self.state == HOLDING:
            fields["confirm"] = self._agreed
        self._parts.source.say(fields, self._every())

    def _every(self) -> float:
        """Seconds between messages."""
        every, patience = swap_group.say_seconds(self._place.size), 1.0
        if self.state == SWAPPED:
            patience = LISTEN_INTERVALS
        elif self.state == GATHERING and time.monotonic() > self._begun + GATHER_SECONDS:
            patience = swap_group.PATIENT
        return every * patience

    def _message(self, step: int) -> Dict[str, Any]:
        program = self._instance.program
        times = [interval.nanoseconds for interval in self._instance.history[-RECENT:]]
        return {
            "group": self.name,
            "round": self._round,
            "size": self._place.size,
            "rank": self._place.rank,
            "step": step,
            "margin": swap_group.margin_of(times, self._place.size),
            "graph": program.digest,
            "key": program.key,
        }

    def _note(self, **fields: Any) -> None:
        program, place = self._instance.program, self._place
        known = {"group": self.name, "round": self._round, "rank": place.rank, "size": place.size}
        self._parts.events.write("group", digest=program.digest, **known, **fields)


class Joined:
    """The members of this process, and which graphs may be one's."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._members: List[Member] = []

    def why_left(self, graph: Any, in_function: bool) -> Optional[Tuple[str, str]]:
        """Why a training step of this process is left alone, (reason, detail): it meets replicas
        that it cannot swap together with; or it meets none, and they would part."""
        config = self._parts.config
        if not collectives.meet_others(graph):
            apart = (reasons.COLLECTIVE, "a step of one replica that does not meet the others")
            return apart if coordination_service.joined() else None
        if config.gateway is None or not coordination_service.joined():
            return reasons.COLLECTIVE, "no gateway that replicas could agree through"
        if config.group is None or config.group.why:
            why = config.group.why if config.group is not None else "TF_CONFIG names no cluster"
            return reasons.SWAP_GROUP, why
        if not in_function or graphs.xla_calls(graph):
            return reasons.COLLECTIVE, "not a function of its own, or one under XLA"
        return None

    def enlist(self, instance: Instance, view: View) -> None:
        """The first caller of a joined graph becomes its member; others keep the original."""
        place, program = self._parts.config.group, instance.program
        if place is not None and program.joined and not program.enlisted:
            program.enlisted = True
            member = Member(instance, view, place, self._parts)
            instance.member = member
            self._members.append(member)

    def tick(self, disable: Callable[[Program, str, str], None]) -> None:
        for member in self._members:
            try:
                member.tick()
            except reasons.Refused as error:
                disable(member._instance.program, error.reason, error.detail)


def hold(instance: Instance, given_up: Callable[[], bool]) -> None:
    """Waits, in the job's own call, while the replicas decide what this step runs. Where nobody
    watches any more (`given_up`), what they have decided is looked up here."""
    member, deadline = instance.member, time.monotonic() + HOLD_SECONDS
    while member is not None and instance.arm[0] == plugin.HELD:
        if given_up():
            member.tick()
        if time.monotonic() > deadline:
            member.release()
        time.sleep(0.0005)
