"""The options of `lockstep join`."""

from pathlib import Path

from lockstep import options


def join(
    url: options.Url,
    *,
    home: options.Home = Path("~/.lockstep"),
    directory: options.NodeDirectory = None,
    data: options.Data = None,
    corpora: options.Corpora = None,
    listen: options.NodeListen = "auto",
    advertise: options.Advertise = None,
    links: options.Links = "grpc",
    upload_limit: options.UploadLimit = 0,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    micro_batch: options.MicroBatch = 8,
    save_every: options.SaveEvery = 20,
    name: options.Name = "",
    admin: options.Admin = "127.0.0.1:0",
    follow_parent: options.FollowParent = False,
) -> None:
    """Train on this machine as a node of a run.

    Ctrl-C finishes the round and leaves; a second one stops at once.
    """
    from lockstep.commands.join import join as join_run
    from lockstep.service.home import Home
    from lockstep.service.serve import ServeOptions
    from node.settings import NodeSettings

    place = (directory or home).expanduser()
    settings = NodeSettings(
        coordinator=url,
        directory=place,
        data=data,
        corpora=(corpora or home / "corpora").expanduser(),
        listen=listen,
        advertise=tuple(advertise or ()),
        links=links,
        upload_limit=upload_limit,
        device=device,
        threads=threads,
        micro_batch=micro_batch,
        save_every=save_every,
        name=name,
    )
    own = Home(place, only=directory is not None)
    join_run(settings, ServeOptions(place, admin, follow_parent), own)
