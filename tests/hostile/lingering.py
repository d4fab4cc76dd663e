"""Clients of vmad that pass it what is slow to close.

lingering.py attack INTERFACE-NUMBER passed|queued|crowd    sockets: "sent" when vmad is the last to have them
lingering.py attack INTERFACE-NUMBER file FOLDER            a file of a file system that does not answer a close
lingering.py probe INTERFACE-NUMBER SECONDS                 how long vmad's answers take: "longest MS"
"""
import array
import ctypes
import errno
import os
import socket
import stat
import struct
import sys
import time

HELLO = struct.pack("=IHHIi112x", 0x64616D76, 4, 1, 1, 0)
address = "\0vma/vmad/" + sys.argv[2]
kept = []


def dial():
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(60)
    one.connect(address)
    return one


def lingering():
    """A connection whose peer reads nothing, and whose close waits for that."""
    listener = socket.create_server(("127.0.0.1", 0))
    mine = socket.create_connection(listener.getsockname())
    kept.append((listener, listener.accept()))
    mine.setblocking(False)
    try:
        while True:
            mine.send(bytes(65536))
    except BlockingIOError:
        pass
    mine.setblocking(True)
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 40))
    return mine


def show(vmad, message, sockets):
    rights = array.array("i", [one.fileno() for one in sockets])
    vmad.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


# The kernel's protocol for file systems in user space (linux/fuse.h): one file, which can be opened.
LOOKUP, FORGET, GETATTR, OPEN, FLUSH, INIT = 1, 2, 3, 14, 25, 26
ATTRIBUTES = struct.pack("=6Q10I", 2, 0, 0, 0, 0, 0, 0, 0, 0, stat.S_IFREG | 0o666, 1, 0, 0, 0, 4096, 0)
ANSWERS = {
    INIT: struct.pack("=IIIIHHI", 7, 31, 4096, 0, 8, 8, 4096) + bytes(40),
    LOOKUP: struct.pack("=4QII", 2, 0, 60, 60, 0, 0) + ATTRIBUTES,
    GETATTR: struct.pack("=QII", 60, 0, 0) + ATTRIBUTES,
    OPEN: struct.pack("=QII", 1, 0, 0),
}


def serve_files(device):
    while True:
        request = os.read(device, 135168)
        _, operation, unique = struct.unpack_from("=IIQ", request)
        if operation in (FORGET, FLUSH):
            continue
        answer = ANSWERS.get(operation, b"")
        os.write(device, struct.pack("=IiQ", 16 + len(answer), 0 if answer else -errno.ENOSYS, unique) + answer)


def mount_files(folder):
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"none", folder.encode(), b"fuse", 6, options) != 0:
        sys.exit("cannot mount: " + os.strerror(ctypes.get_errno()))
    return device


if sys.argv[1] == "attack" and sys.argv[3] == "file":
    device = mount_files(sys.argv[4])
    # The file's close waits in the child, too: the file system's end, this process's, ends all waits.
    if os.fork() != 0:
        serve_files(device)
    os.close(device)
    file = open(sys.argv[4] + "/file", "rb", buffering=0)
    vmad = dial()
    show(vmad, HELLO, [file])
    print("sent", flush=True)
    time.sleep(120)
elif sys.argv[1] == "attack":
    sockets = [lingering() for _ in range(60 if sys.argv[3] == "crowd" else 1)]
    vmad = dial()
    if sys.argv[3] == "queued":  # what breaks the protocol ends the connection, with what is still in it
        vmad.send(b"nonsense")
    show(vmad, HELLO, sockets)
    for one in sockets:
        one.close()  # vmad is stopped: the message holds it
    print("sent", flush=True)
    time.sleep(120)
else:
    end = time.monotonic() + float(sys.argv[3])
    longest = 0.0
    while time.monotonic() < end:
        begun = time.monotonic()
        vmad = dial()
        vmad.send(HELLO)
        if len(vmad.recv(128)) != 128:
            sys.exit("no answer")
        vmad.close()
        longest = max(longest, time.monotonic() - begun)
        time.sleep(0.01)
    print("longest", int(longest * 1000))
