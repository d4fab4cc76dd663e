# restart_echo.py ADDRESS PORT: says back what comes, to everybody.
import selectors, socket, sys

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen(64)
select = selectors.DefaultSelector()
select.register(listener, selectors.EVENT_READ)
print("listening", flush=True)
while True:
    for key, _ in select.select():
        if key.fileobj is listener:
            select.register(listener.accept()[0], selectors.EVENT_READ)
            continue
        data = key.fileobj.recv(65536)
        if data:
            key.fileobj.sendall(data)
        else:
            select.unregister(key.fileobj)
            key.fileobj.close()
