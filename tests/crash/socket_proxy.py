"""Forwards connections of a Unix socket to another one: `socket_proxy.py LISTEN TARGET`. Stopped with SIGSTOP, it is a network that loses everything."""

import asyncio
import contextlib
import os
import sys


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        target_reader, target_writer = await asyncio.open_unix_connection(sys.argv[2])
    except OSError:  # the server is away
        writer.close()
        return
    await asyncio.gather(_copy(reader, target_writer), _copy(target_reader, writer))


async def main() -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(sys.argv[1])
    server = await asyncio.start_unix_server(_forward, sys.argv[1])
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
