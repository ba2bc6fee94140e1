"""A proxy that delays traffic: ``relay.py NEAR FAR MILLISECONDS USER``.

NEAR is a Unix socket, FAR another one or ``ADDRESS:PORT``.
"""

import asyncio
import os
import pwd
import selectors
import sys

_CHUNK = 1 << 16


async def serve(near: str, far: str, delay_s: float) -> None:
    """Forward all connections."""

    async def relay(near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        address, _, port = far.rpartition(":")
        try:
            far_in, far_out = await (
                asyncio.open_unix_connection(far)
                if far.startswith("/")
                else asyncio.open_connection(address, port)
            )
        except OSError:  # the server is gone
            near_out.close()
            return
        directions = _pass_on(near_in, far_out, delay_s), _pass_on(far_in, near_out, delay_s)
        await asyncio.gather(*directions, return_exceptions=True)

    async with await asyncio.start_unix_server(relay, near) as server:
        await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    call_later = asyncio.get_running_loop().call_later
    try:
        while data := await reader.read(_CHUNK):
            call_later(delay_s, writer.write, data)
            await writer.drain()
    finally:
        call_later(delay_s, writer.close)


def main() -> None:
    """Run the proxy as the given user."""
    near, far, delay_ms, user = sys.argv[1:]
    if user:
        entry = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)

    # select waits in microseconds, epoll in milliseconds
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(serve(near, far, float(delay_ms) / 1000))


if __name__ == "__main__":
    main()
