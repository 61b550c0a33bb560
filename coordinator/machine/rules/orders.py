"""The effects of the operator's orders on a run. Pure.

    pause, resume      the next round waits; members stay, and an open round goes on to its end
    finish             no further round opens, but a last mean where nodes mix parameters; when the
                       open ones are decided the run is finished
    extend, rate       another length or learning rate: an entry of the chain says so; a run that
                       has ended goes on
    checkpoint         a member publishes the model after the next commit
    evict              the member goes and is told why; for some time it waits at the door
    ban, unban         a key or host is refused; a key that is banned is neither vouched for nor an
                       auditor any more
    vouch              the key decides, in a run that is open to the public
    demote             an auditor's evidence: the key has no standing any more
    reject             evidence that proves nothing: it counts against the auditor
    appoint, dismiss   the key's word on states is final, or counts no more
    announce           every node is told
    admit, allow,
    disallow, token,
    revoke             whom the run admits (`coordinator.machine.state.admission`)

An order that would change nothing is objected to before it becomes an event (`objection`); taking
one twice does no harm.
"""

from typing import assert_never

from coordinator.machine.events import acts
from coordinator.machine.events.acts import Act, Ordered, Salted, TokenShown, Vouched
from coordinator.machine.events.effects import Chained, Effect, Evict, Notify, TellMembers
from coordinator.machine.events.inputs import OperatorEvent
from coordinator.machine.rules import auditing, demotion, membership, publishing
from coordinator.machine.rules.sums import refuting
from coordinator.machine.state.admission import ALLOWED_MAX, TOKENS_MAX, UsedToken
from coordinator.machine.state.membership import Membership
from coordinator.machine.state.operator import NOTICES_KEPT, Away, Notice
from coordinator.machine.state.run import Run
from coordinator.machine.state.run_state import RunEnd, RunState
from coordinator.machine.state.verdicts import AUDITORS_MAX
from protocol.codec.chain import STEPS_MAX, Reschedule, entry_digest
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.schedule import float32_bits

SCHEDULES_KEPT = 64
"""Newest changes of the schedule in the state; the chain has all."""

BANS_MAX = 4096
"""Bans at once; more than these are an address range, which a firewall keeps out better."""


def take(event: OperatorEvent, run: Run, now_ms: int) -> list[Effect]:
    """Take one event; return what must follow. Raises `LocalProtocolError` for an act that does not
    follow the one before it.
    """
    state, standing = run.state, run.members.standing
    match event:
        case Vouched(peer):
            standing.vouched.add(peer)
        case Salted(salt):
            standing.salt = standing.salt or salt
        case TokenShown() if is_news(event, run):  # else used up or revoked while it waited
            used = state.operator.admission.use(event.peer, event.digest)
            if used and used.token.vouches:
                standing.vouched.add(event.peer)
        case TokenShown():
            pass
        case Ordered(act, given_s):
            if flaw := acts.flaw(event, state.operator.head):
                raise LocalProtocolError(flaw)
            state.operator.acts += 1
            state.operator.head = event.digest
            if said := acts.public_words(act):
                newest = [*state.operator.newest, Notice(given_s, said)]
                state.operator.newest = newest[-NOTICES_KEPT:]
            return membership.follow(_obey(act, given_s, run, now_ms), run, now_ms)
        case _:
            assert_never(event)
    return []


def is_news(event: TokenShown, run: Run) -> bool:
    """Whether a token that a key has shown changes anything."""
    return not token_flaw(event, run)


def token_flaw(event: TokenShown, run: Run) -> str:
    """Why a token that a key has shown gives it nothing; empty when it gives it something."""
    vouched, admission = event.peer in run.members.standing.vouched, run.state.operator.admission
    return admission.flaw(event.peer, event.digest, event.shown_s, vouched=vouched)


def objection(act: Act, run: Run) -> str:
    """Why an act cannot be done or would change nothing, with the cure; empty when it may be
    done.
    """
    state, members = run.state, run.members
    operator, admission = state.operator, state.operator.admission
    match act:
        case acts.Pause() | acts.Finish() if state.end.finished:
            return f"the run has ended: {state.reason}"
        case acts.Finish() if operator.finishing is not None:
            return "the run ends already, after the round that is open"
        case acts.Resume() if operator.paused is None:
            return "expected a paused run, found one that is not"
        case acts.Extend(steps) if (
            state.schedules and state.schedules[-1].steps + steps > STEPS_MAX
        ):
            return f"expected a run of at most {STEPS_MAX:,} steps"
        case acts.Rate() if state.end.finished:
            return f"the run has ended: {state.reason}; extend it first"
        case acts.Checkpoint():
            return publishing.objection(state)
        case acts.Evict(peer) if members.get(acts.key_of(peer)) is None:
            return f"expected a member, found none with the key {peer}; `lockstep run members`"
        case acts.Ban(target) if len(operator.bans) >= BANS_MAX and target not in operator.bans:
            return f"expected at most {BANS_MAX} bans; lift some, or use a firewall"
        case acts.Unban(target) if target not in operator.bans:
            return f"expected a banned key or host, found no ban of {target}"
        case acts.Demote() | acts.Reject() | acts.Refute():
            return _objection_to_evidence(act, run)
        case acts.Vouch(peer) if (
            peer in members.standing.vouched and peer not in members.standing.demoted
        ):
            return f"{peer} is vouched for already"
        case acts.Appoint(peer) if peer in state.verdicts.auditors:
            return f"{peer} is an auditor already"
        case acts.Appoint() if len(state.verdicts.auditors) >= AUDITORS_MAX:
            return f"expected at most {AUDITORS_MAX} auditors; take one off"
        case acts.Appoint(peer) if peer in operator.bans:
            return f"{peer} is banned; lift the ban first"
        case acts.Dismiss(peer) if peer not in state.verdicts.auditors:
            return (
                f"expected an auditor, found none with the key {peer}; `lockstep run auditor list`"
            )
        case acts.Admit(mode) if mode == admission.mode:
            return f"the run admits by {mode} already" if mode != "open" else "the run is open"
        case acts.Allow(peer) if peer in admission.allowed:
            return f"{peer} is on the list already"
        case acts.Allow() if len(admission.allowed) >= ALLOWED_MAX:
            return f"expected at most {ALLOWED_MAX} keys on the list; take some off"
        case acts.Disallow(peer) if not {peer} & (admission.allowed | admission.admitted.keys()):
            return f"expected a key on the list or one that was admitted, found {peer}"
        case acts.Token(name) if name in admission.tokens:
            return f"expected a new name, found the token {name}; revoke it first"
        case acts.Token() if len(admission.tokens) >= TOKENS_MAX:
            return f"expected at most {TOKENS_MAX} tokens; revoke some"
        case acts.Revoke(name) if name not in admission.tokens:
            return f"expected a token, found none called {name}; `lockstep run token list`"
    return ""


def _objection_to_evidence(act: acts.Demote | acts.Reject | acts.Refute, run: Run) -> str:
    match act:
        case acts.Demote():
            return demotion.objection(act, run)
        case acts.Reject():
            return demotion.rejection_objection(act, run.state)
        case acts.Refute():
            return refuting.objection(act, run)


def _obey(act: Act, given_s: int, run: Run, now_ms: int) -> list[Effect]:
    state, members = run.state, run.members
    operator, admission = state.operator, state.operator.admission
    match act:
        case acts.Pause(reason):
            operator.paused = reason
        case acts.Resume():
            operator.paused = None
        case acts.Finish(reason):
            operator.finishing = reason
        case acts.Checkpoint():
            publishing.wish(state)
        case acts.Evict(peer, reason, away_s):
            away = Away(now_ms + 1000 * away_s, reason)
            _keep_away(acts.key_of(peer), away, state, now_ms)
            return _removed(acts.key_of(peer), away.words(now_ms), members)
        case acts.Ban(target, reason):
            operator.bans[target] = reason
            return _banned(target, run, now_ms)
        case acts.Unban(target):
            operator.bans.pop(target, None)
        case acts.Vouch(peer):
            members.standing.vouched.add(acts.key_of(peer))
            members.standing.restore(acts.key_of(peer), state.head_round)
        case acts.Appoint(peer):
            auditing.appoint(acts.key_of(peer), state.verdicts)
        case acts.Dismiss(peer):
            return _dismissed(acts.key_of(peer), run, now_ms)
        case acts.Announce(text):
            operator.notices = [*operator.notices, Notice(given_s, text)][-NOTICES_KEPT:]
            return [Notify(text)]
        case acts.Admit(mode):
            admission.change(mode, members.roster)
        case acts.Allow(peer):
            admission.allowed.add(acts.key_of(peer))
        case acts.Disallow(peer):
            admission.allowed.discard(acts.key_of(peer))
            admission.admitted.pop(acts.key_of(peer), None)
        case acts.Token(name):
            admission.tokens[name] = UsedToken(act)
        case acts.Revoke(name):
            admission.tokens.pop(name, None)
        case acts.Extend() | acts.Rate():
            return _reschedule(act, run)
        case acts.Demote():
            demotion.take(act, run)
        case acts.Reject():
            demotion.reject(act, state)
        case acts.Refute():
            refuting.take(act, run)
        case _:
            assert_never(act)
    return []


def _reschedule(act: acts.Extend | acts.Rate, run: Run) -> list[Effect]:
    """Another length or learning rate, signed into the chain; a longer run goes on if it had
    ended, and is not ended by an earlier order.
    """
    state, before = run.state, run.state.schedule(run.spec)
    step = state.totals.committed
    steps, rate = before.steps, before.learning_rate
    if isinstance(act, acts.Rate):
        rate = act.learning_rate
    else:
        # one that was ended early gets its new steps from where it stands
        steps = min(
            STEPS_MAX, (step if state.operator.finishing is not None else steps) + act.steps
        )
        state.operator.finishing, state.end = None, RunEnd()
        state.consensus.tries = 0
        state.reason = f"the operator has extended the run to {steps} steps"
    entry = Reschedule(run.run_id, state.head_round, step, steps, float32_bits(rate), state.head)
    state.head = entry_digest(entry)
    state.schedules = [*state.schedules, entry][-SCHEDULES_KEPT:]
    return [Chained(entry)]


def _keep_away(peer: PeerId, away: Away, state: RunState, now_ms: int) -> None:
    """Remember who is kept away, and forget those whose time is over."""
    earlier = state.operator.away.items()
    still = {other: each for other, each in earlier if each.until_ms > now_ms}
    state.operator.away = still | {peer: away}


def _banned(target: str, run: Run, now_ms: int) -> list[Effect]:
    if not acts.is_key(target):
        return []
    peer = acts.key_of(target)
    run.members.standing.vouched.discard(peer)
    effects = _dismissed(peer, run, now_ms)
    return effects + _removed(peer, run.state.operator.banned(target), run.members)


def _dismissed(auditor: PeerId, run: Run, now_ms: int) -> list[Effect]:
    run.state.operator.rejected.pop(auditor, None)
    return auditing.dismiss(auditor, run, now_ms)


def _removed(peer: PeerId, reason: str, members: Membership) -> list[Effect]:
    """The effects of a member's removal; the caller forgets its samples."""
    if members.get(peer) is None:
        return []
    members.evict(peer)
    return [Evict(peer, reason), TellMembers(gone=(peer,))]
