# asyncio_echo.py serve IP PORT | ask IP PORT CONNECTIONS: an echo server, and clients that all are connected at a time,
# each with bytes of its own in pieces of several sizes, compared.
import asyncio
import random
import sys

PIECES = (1, 100, 1448, 5000, 20000)


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(ip, port):
    server = await asyncio.start_server(echo, ip, port, backlog=2048)
    print("listening", flush=True)
    await server.serve_forever()


async def ask(ip, port, number, everybody):
    reader, writer = await asyncio.open_connection(ip, port)
    await everybody.wait()
    source = random.Random(number)
    for size in PIECES:
        data = source.randbytes(size)
        writer.write(data)
        await writer.drain()
        assert await reader.readexactly(size) == data, (number, size)
    writer.write_eof()
    assert await reader.read() == b"", number
    writer.close()
    await writer.wait_closed()


async def ask_all(ip, port, connections):
    everybody = asyncio.Event()
    tasks = [asyncio.create_task(ask(ip, port, n, everybody)) for n in range(connections)]
    await asyncio.sleep(0.5)
    everybody.set()
    await asyncio.gather(*tasks)
    print(connections, "connections")


command, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if command == "serve":
    asyncio.run(serve(address, port))
else:
    asyncio.run(ask_all(address, port, int(sys.argv[4])))
