"""The commands of `lockstep run` and their options."""

from pathlib import Path
from typing import Annotated

from coordinator.machine.events import acts
from lockstep import options
from lockstep.declared import CommandGroup
from protocol.option import Option

run_app = CommandGroup(
    name="run",
    help="Steer a run whose coordinator works on this machine.",
    no_args_is_help=True,
)
token_app = CommandGroup(
    name="token", help="Tokens that admit nodes to the run.", no_args_is_help=True
)
auditor_app = CommandGroup(
    name="auditor", help="Auditors whose word on the run's states is final.", no_args_is_help=True
)
run_app.add_typer(token_app)
run_app.add_typer(auditor_app)

Directory = Annotated[
    Path | None,
    Option("DIR", shown="the one RUN.coordinator here", help="Directory of the coordinator."),
]
Why = Annotated[
    str,
    Option(
        "TEXT",
        shown="none",
        variable=False,
        help="Reason that nodes and the status are told, at most 200 characters.",
    ),
]
Yes = Annotated[
    bool,
    Option(
        names=(
            "--yes",
            "-y",
        ),
        variable=False,
        help="Do it without a question; it is asked on a terminal alone.",
    ),
]
Node = Annotated[
    str,
    Option(
        "NODE", argument=True, help="Id of a node, the first characters of a member's, or its name."
    ),
]
Target = Annotated[
    str,
    Option(
        "NODE|HOST",
        argument=True,
        help="Node as for evict, or the IP address from which nodes come; an IPv6 address stands "
        "for its /64 network.",
    ),
]


@run_app.command()
def members(*, directory: Directory = None, json: options.JsonFile = None) -> None:
    """Show the members with their hosts, and whom the run refuses."""
    from lockstep.commands.run.orders import members as show

    show(directory, json)


@run_app.command()
def pause(*, reason: Why = "", directory: Directory = None) -> None:
    """Open no further round; the open one ends as always, and members stay."""
    from lockstep.commands.run import orders

    orders.tell(directory, acts.Pause(reason))


@run_app.command()
def resume(*, directory: Directory = None) -> None:
    """Open rounds again."""
    from lockstep.commands.run import orders

    orders.tell(directory, acts.Resume())


@run_app.command()
def finish(*, reason: Why = "", yes: Yes = False, directory: Directory = None) -> None:
    """End the run after the round that is open; nodes save the model as after the last step.

    Only `lockstep run extend` takes it back.
    """
    from lockstep.commands.run import orders

    orders.tell_if_sure(directory, acts.Finish(reason), yes=yes)


@run_app.command()
def extend(
    steps: Annotated[
        int, Option("STEPS", argument=True, least=1, help="Steps that are added to the run.")
    ],
    *,
    directory: Directory = None,
) -> None:
    """Give the run further steps, also one that has ended: it waits for its members again.

    The learning rate's shape is stretched over the new length. The change is signed into the chain.
    """
    from lockstep.commands.run import orders

    orders.tell(directory, acts.Extend(steps))


@run_app.command()
def rate(
    learning_rate: Annotated[
        float,
        Option(
            "RATE", argument=True, help="Largest learning rate from the next commit on, at most 10."
        ),
    ],
    *,
    directory: Directory = None,
) -> None:
    """Change the largest learning rate; the change is signed into the chain."""
    from lockstep.commands.run import orders

    orders.tell(directory, acts.Rate(learning_rate))


@run_app.command()
def checkpoint(*, directory: Directory = None) -> None:
    """Publish the model after the next commit, or now where the run stands still."""
    from lockstep.commands.run import orders

    orders.tell(directory, acts.Checkpoint())


@run_app.command()
def evict(
    node: Node,
    *,
    reason: Why = "",
    away: Annotated[
        str,
        Option(
            "DURATION",
            names=("--for",),
            variable=False,
            help="Time for which it may not come back, such as 90s, 30m, 2h or 1d.",
        ),
    ] = "10m",
    directory: Directory = None,
) -> None:
    """Remove a member for some time; it is told the reason and comes back by itself."""
    from lockstep.commands.run import orders
    from lockstep.volunteer.limits import parse_duration

    seconds = int(parse_duration(away))
    orders.tell(directory, acts.Evict(orders.key(directory, node), reason, seconds))


@run_app.command()
def ban(target: Target, *, reason: Why = "", yes: Yes = False, directory: Directory = None) -> None:
    """Refuse a node or a host from now on; its nodes end with exit code 9 and the reason."""
    from lockstep.commands.run import orders

    act = acts.Ban(orders.target(directory, target), reason)
    orders.tell_if_sure(directory, act, yes=yes)


@run_app.command()
def unban(target: Target, *, directory: Directory = None) -> None:
    """Lift a ban."""
    from lockstep.commands.run import orders

    orders.tell(directory, acts.Unban(orders.banned(directory, target)))


@run_app.command()
def vouch(node: Node, *, directory: Directory = None) -> None:
    """Let a node's word count in a run with trust = "public"."""
    from lockstep.commands.run import orders

    orders.tell(directory, acts.Vouch(orders.key(directory, node)))


@run_app.command()
def announce(
    text: Annotated[
        str,
        Option("TEXT", argument=True, help="Text for every node's user, 1000 characters at most."),
    ],
    *,
    directory: Directory = None,
) -> None:
    """Tell every node that is connected something; the status shows the newest."""
    from lockstep.commands.run import orders

    orders.tell(directory, acts.Announce(text))


@run_app.command()
def admit(
    rule: Annotated[str, Option("RULE", argument=True, help="Rule: open, token or list.")],
    *,
    directory: Directory = None,
) -> None:
    """Say whom the run admits: every key, keys with a token, or the keys on a list.

    Members stay, and a key that was admitted once stays admitted.
    """
    from lockstep.commands.run import orders

    orders.tell(directory, orders.rule(rule))


@run_app.command()
def allow(node: Node, *, directory: Directory = None) -> None:
    """Put a node on the list of those that are admitted."""
    from lockstep.commands.run import orders

    orders.tell(directory, acts.Allow(orders.key(directory, node)))


@run_app.command()
def disallow(node: Node, *, directory: Directory = None) -> None:
    """Take a node off the list; as a member it stays until it leaves."""
    from lockstep.commands.run import orders

    orders.tell(directory, acts.Disallow(orders.key(directory, node)))


@run_app.command()
def audit(
    *,
    kept: Annotated[
        str,
        Option(
            "DIGEST",
            shown="none",
            variable=False,
            help="Digest of an act that you wrote down: it must be in the chain.",
        ),
    ] = "",
    directory: Directory = None,
    json: options.JsonFile = None,
) -> None:
    """Check the chain of the operator's acts and show them; works without the coordinator too."""
    from lockstep.commands.run.audit import audit as show

    show(directory, kept, json)


@run_app.command()
def page(
    folder: Annotated[
        Path, Option("FOLDER", argument=True, help="Folder for the files; it is made.")
    ],
    *,
    directory: Directory = None,
) -> None:
    """Write the public page of the run, as it is now, for any web server."""
    from lockstep.commands.run import orders

    orders.write_page(directory, folder)


@run_app.command()
def export(
    directory: Annotated[
        Path | None,
        Option(
            "DIRECTORY",
            argument=True,
            shown="the one RUN.coordinator here",
            help="Directory of the coordinator.",
        ),
    ] = None,
    *,
    csv: Annotated[str, Option("FILE", variable=False, help="File to write; - prints it.")],
) -> None:
    """Write a table with a line for each decided round; works without the coordinator too."""
    from lockstep.commands.run.export import export as write

    write(directory, csv)


Auditor = Annotated[
    str,
    Option("KEY", argument=True, help="Id of an auditor, which `lockstep auditor` prints."),
]


@auditor_app.command()
def add(auditor: Auditor, *, directory: Directory = None) -> None:
    """Let an auditor's replay decide whose state is right, whatever the members say."""
    from lockstep.commands.run import orders

    orders.tell(directory, acts.Appoint(orders.auditor_key(auditor)))


@auditor_app.command()
def remove(auditor: Auditor, *, directory: Directory = None) -> None:
    """Let the word of an auditor count no more; without any, members vote again."""
    from lockstep.commands.run import orders

    orders.tell(directory, acts.Dismiss(orders.auditor_key(auditor)))


@auditor_app.command(name="list")
def list_auditors(*, directory: Directory = None) -> None:
    """Show the auditors that are named."""
    from lockstep.commands.run import orders

    orders.auditors(directory)


Uses = Annotated[
    int,
    Option("N", least=1, most=4096, variable=False, help="Number of keys that it may admit."),
]
Expires = Annotated[
    str,
    Option("DURATION", variable=False, help="Time for which it holds, such as 12h or 7d."),
]


def invite(*, uses: Uses = 1, expires: Expires = "7d", directory: Directory = None) -> None:
    """Print one line that joins the run, with a token where it wants one, and as a QR code."""
    from lockstep.commands.run.invite import invite as print_invitation
    from lockstep.volunteer.limits import parse_duration

    print_invitation(directory, uses=uses, expires_in_s=parse_duration(expires))


@token_app.command()
def create(
    *,
    name: Annotated[
        str,
        Option("NAME", shown="made up", variable=False, help="Name of the token in lists."),
    ] = "",
    uses: Uses = 1,
    expires: Expires = "7d",
    vouch: Annotated[
        bool,
        Option(variable=False, help="Vouch for the keys too, in a run with trust = public."),
    ] = False,
    directory: Directory = None,
) -> None:
    """Make a token and print it, with the line that joins by it; only its digest is kept."""
    from lockstep.commands.run import orders
    from lockstep.volunteer.limits import parse_duration

    seconds = parse_duration(expires)
    orders.create_token(directory, name, uses=uses, expires_in_s=seconds, vouches=vouch)


@token_app.command("list")
def list_tokens(*, directory: Directory = None, json: options.JsonFile = None) -> None:
    """Show the tokens, without their secrets, and how often each was used."""
    from lockstep.commands.run import orders

    orders.tokens(directory, json)


@token_app.command()
def revoke(
    name: Annotated[str, Option("NAME", argument=True, help="Name of the token.")],
    *,
    directory: Directory = None,
) -> None:
    """Let a token admit nobody any more; keys that it admitted stay admitted."""
    from lockstep.commands.run import orders

    orders.tell(directory, acts.Revoke(name))
