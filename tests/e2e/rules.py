"""For rules.sh. `rules.py peer A B`: everything that the program under test talks to, in the other namespace.
`rules.py CASE A B`, preloaded: makes sockets, and prints a line for each: its name, whether it is offloaded, the line of
the rule that vma_get_socket_state names, and whether the kernel of this namespace counted what it carried."""
import ctypes
import os
import re
import socket
import sys
import threading
import time

ROUNDS = 5
UDP_RECEIVERS = range(8001, 8010)  # of the program
TCP_PEERS, UDP_PEERS = range(7001, 7010), range(9001, 9020)  # of the peer
CONTROL = 5000  # of the peer: a datagram names the TCP server to connect to


def tcp_echo(s):
    while data := s.recv(100):
        s.sendall(data)


# ---- the peer ----


def serve_tcp(port):
    listener = socket.create_server((A, port))
    while True:
        with listener.accept()[0] as s:
            try:
                tcp_echo(s)
            except OSError:
                pass


def serve_udp(port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((A, port))
    while True:
        data, sender = s.recvfrom(100)
        s.sendto(data, sender)


def use_tcp():
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    control.bind((A, CONTROL))
    while True:
        port = int(control.recv(100))
        with socket.create_connection((B, port), 5) as s:
            for _ in range(ROUNDS):
                s.sendall(b"x")
                s.recv(100)


def use_udp(port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while True:
        s.sendto(b"x", (B, port))
        time.sleep(0.02)


def peer():
    threading.Thread(target=use_tcp, daemon=True).start()
    for function, ports in (serve_tcp, TCP_PEERS), (serve_udp, UDP_PEERS), (use_udp, UDP_RECEIVERS):
        for port in ports:
            threading.Thread(target=function, args=(port,), daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()


# ---- the program ----


def counted(protocol, fields):
    with open("/proc/thread-self/net/snmp") as file:
        names, values = (line.split() for line in file if line.startswith(protocol + ":"))
    return sum(int(value) for name, value in zip(names, values) if name in fields)


def state(s):
    text = ctypes.c_char_p()
    is_offloaded = ctypes.CDLL(None).vma_get_socket_state(s.fileno(), ctypes.byref(text))
    rule = re.search(r"\(\S*/(\w+)\.conf:(\d+)\)", text.value.decode())
    return f"{is_offloaded} {'line ' + rule[2] + ('' if rule[1] == 'rules' else ' of ' + rule[1]) if rule else 'no line'}"


def way(protocol, fields, before):
    n = counted(protocol, fields) - before
    return "past the kernel" if n == 0 else "by the kernel" if n >= ROUNDS else f"{n} by the kernel"


def show(name, s, protocol, fields, carry):
    said = state(s)
    before = counted(protocol, fields)
    for _ in range(ROUNDS):
        carry()
    print(f"{name}: {said}, {way(protocol, fields, before)}", flush=True)


def end(s):
    """What follows begins at rest: the kernel has counted the last segment of this connection."""
    s.shutdown(socket.SHUT_WR)
    while s.recv(100):
        pass
    s.close()
    n = -1
    while n != counted("Tcp", ("InSegs", "OutSegs")):
        n = counted("Tcp", ("InSegs", "OutSegs"))
        time.sleep(0.05)


def tcp_server(name, port, address="0.0.0.0", family=socket.AF_INET):
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind((address, port))
    listener.listen()
    said = state(listener)
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    before = counted("Tcp", ("InSegs", "OutSegs"))
    control.sendto(str(port).encode(), (A, CONTROL))
    s = listener.accept()[0]
    accepted = state(s)[0]
    tcp_echo(s)
    end(s)
    print(f"{name}: {said}, accepted {accepted}, {way('Tcp', ('InSegs', 'OutSegs'), before)}", flush=True)


def tcp_client(name, port, bound=None, family=socket.AF_INET):
    s = socket.socket(family)
    if bound:
        s.bind(bound)
    s.connect((("::ffff:" if family == socket.AF_INET6 else "") + A, port))

    def carry():
        s.sendall(b"x")
        s.recv(100)

    carry()
    show(name, s, "Tcp", ("InSegs", "OutSegs"), carry)
    end(s)


def udp_receiver(name, port, address="0.0.0.0", family=socket.AF_INET):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.bind((address, port))
    s.recv(100)
    show(name, s, "Udp", ("InDatagrams",), lambda: s.recv(100))


def udp_connect(name, port, bound=None, family=socket.AF_INET):
    s = socket.socket(family, socket.SOCK_DGRAM)
    if bound:
        s.bind(bound)
    s.connect((("::ffff:" if family == socket.AF_INET6 else "") + A, port))

    def carry():
        s.send(b"x")
        s.recv(100)

    for _ in range(3):
        carry()
    show(name, s, "Udp", ("InDatagrams", "OutDatagrams"), carry)


def udp_sender(name, port, family=socket.AF_INET, others=()):
    s = socket.socket(family, socket.SOCK_DGRAM)
    to = ("::ffff:" if family == socket.AF_INET6 else "") + A

    def carry(port=port):
        s.sendto(b"x", (to, port))
        s.recv(100)

    for _ in range(3):
        carry()
    for other in others:
        carry(other)
    show(name, s, "Udp", ("OutDatagrams",), carry)


def roles():
    tcp_server("tcp_server wildcard", 6001)
    tcp_server("tcp_server prefix", 6002, B)
    tcp_server("tcp_server range", 6004, B)
    tcp_server("tcp_server first match", 6005)
    tcp_server("tcp_server second match", 6006)
    tcp_server("tcp_server mapped", 6007, "::", socket.AF_INET6)
    tcp_server("tcp_server no match", 6009)
    tcp_client("tcp_client wildcard", 7001)
    tcp_client("tcp_client prefix", 7002)
    tcp_client("tcp_client range", 7004)
    tcp_client("tcp_client first match", 7005)
    tcp_client("tcp_client local address", 7006)
    tcp_client("tcp_client local port", 7007, (B, 17007))
    tcp_client("tcp_client other local port", 7007, (B, 17008))
    tcp_client("tcp_client mapped", 7001, None, socket.AF_INET6)
    tcp_client("tcp_client no match", 7009)
    udp_receiver("udp_receiver wildcard", 8001)
    udp_receiver("udp_receiver prefix", 8002, B)
    udp_receiver("udp_receiver range", 8004)
    udp_receiver("udp_receiver first match", 8005)
    udp_receiver("udp_receiver mapped", 8007, "::", socket.AF_INET6)
    udp_receiver("udp_receiver no match", 8009)
    udp_connect("udp_connect wildcard", 9001)
    udp_connect("udp_connect prefix", 9002)
    udp_connect("udp_connect range", 9004)
    udp_connect("udp_connect first match", 9005)
    udp_connect("udp_connect local port", 9007, ("0.0.0.0", 19007))
    udp_connect("udp_connect mapped", 9001, None, socket.AF_INET6)
    udp_connect("udp_connect no match", 9009)
    udp_sender("udp_sender wildcard", 9011)
    udp_sender("udp_sender prefix", 9012)
    udp_sender("udp_sender range", 9014)
    udp_sender("udp_sender first match", 9015)
    udp_sender("udp_sender mapped", 9011, socket.AF_INET6)
    udp_sender("udp_sender no match", 9019)
    udp_sender("udp_sender no match, others do", 9019, others=(9011, 9012))


def one():
    tcp_client("client", 7001)


def fork():
    s = socket.socket()  # the engine starts, and reads the rules
    os.rename(os.environ["VMA_CONFIG_FILE"], os.environ["VMA_CONFIG_FILE"] + ".away")
    if os.fork() == 0:
        tcp_client("child", 7001)
        os._exit(0)
    os.wait()
    s.close()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, sys.argv[0], "one", A, B])


def late():
    """A socket that has been offloaded is the kernel's after a connect to a peer of a rule; nothing is lost."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((B, 8009))
    s.recv(100)
    print("before:", state(s))
    s.connect((A, 9001))
    for _ in range(3):
        s.send(b"y")
        while s.recv(100) != b"y":  # what had come before the connect
            pass
    print("after:", state(s), flush=True)


if __name__ == "__main__":
    A, B = sys.argv[2:4]
    globals()[sys.argv[1]]()
