"""A process that holds one of vmad's abstract names: squatters.py NAME full|deaf|open"""
import socket
import sys
import time

name, kind = "\0" + sys.argv[1], sys.argv[2]
held = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
held.bind(name)
waiting = []
if kind != "deaf":
    held.listen(0 if kind == "full" else 64)
while kind == "full":
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.setblocking(False)
    try:
        one.connect(name)
    except BlockingIOError:
        break
    waiting.append(one)
print("holds", flush=True)
time.sleep(120)
