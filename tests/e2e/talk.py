# talk.py connect|listen|FILE ADDRESS PORT LOCAL_PORT ACTION...: one connection, and what to do with it, in turn. FILE:
# as connect, when it is there.
import os, socket, struct, sys, time

role, address, port, local = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if role not in ("connect", "listen"):
    print("ready", flush=True)
    while not os.path.exists(role):
        time.sleep(0.01)
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if role != "listen":
    if local:
        s.bind(("0.0.0.0", local))
    s.settimeout(20)
    s.connect((address, port))
    s.settimeout(None)
else:
    s.bind((address, port))
    s.listen()
    print("listening", flush=True)
    s, _ = s.accept()
print("connected", flush=True)
for action in sys.argv[5:]:
    what, _, arg = action.partition("=")
    if what == "say":
        s.sendall(b"word")
    elif what == "hear":
        assert s.recv(4, socket.MSG_WAITALL) == b"word"
    elif what == "end":  # of the peer's stream
        assert s.recv(1) == b""
    elif what == "shut":
        s.shutdown(socket.SHUT_WR)
    elif what == "close":
        s.close()
    elif what == "wait":  # for a file
        while not os.path.exists(arg):
            time.sleep(0.01)
    elif what == "hold":
        time.sleep(1000)
    elif what == "reset":  # by the peer
        try:
            s.recv(1)
            sys.exit("no reset")
        except ConnectionResetError:
            pass
    elif what == "broken":  # the peer resets what is said, if it has not been reset before
        try:
            for _ in range(200):
                s.sendall(b"word")
                time.sleep(0.01)
            sys.exit("no reset")
        except (ConnectionResetError, BrokenPipeError):
            pass
    print("done", action, flush=True)
