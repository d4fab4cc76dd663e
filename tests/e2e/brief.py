# A server that closes each connection once it has answered, and its clients, one connection after the other.
#
#   brief.py serve ADDRESS PORT loop|epoll    answers ten bytes; to a request that begins with "L" it leaves bytes unread
#   brief.py ask ADDRESS PORT N               N connections: the answer, then the end
#   brief.py long ADDRESS PORT N              N connections whose requests are not read to the end: the answer, then a reset
import select
import socket
import sys

ANSWER = b"header" + b"body"


def answer(connection):
    request = connection.recv(4)
    connection.sendall(b"header")
    connection.sendall(b"body")
    connection.close()
    return request


def serve(address, port, how):
    listener = socket.create_server((address, port), backlog=64)
    print("listening", flush=True)
    if how == "loop":
        while True:
            answer(listener.accept()[0])
    epoll, connections = select.epoll(), {}
    epoll.register(listener, select.EPOLLIN)
    while True:
        for number, _ in epoll.poll():
            if number == listener.fileno():
                connection = listener.accept()[0]
                connections[connection.fileno()] = connection
                epoll.register(connection, select.EPOLLIN)
            else:
                epoll.unregister(number)
                answer(connections.pop(number))


def ask_one(address, port, request):
    got, end = b"", "end"
    with socket.create_connection((address, port), timeout=10) as connection:
        connection.sendall(request)
        try:
            while piece := connection.recv(100):
                got += piece
        except ConnectionResetError:
            end = "reset"
    return got, end


def ask(address, port, n, request, wanted):
    for i in range(n):
        result = ask_one(address, port, request)
        if result != (ANSWER, wanted):
            sys.exit(f"connection {i}: {result}")


what, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if what == "serve":
    serve(address, port, sys.argv[4])
elif what == "ask":
    ask(address, port, int(sys.argv[4]), b"GET\n", "end")
else:
    ask(address, port, int(sys.argv[4]), b"LONG REQUEST\n", "reset")
