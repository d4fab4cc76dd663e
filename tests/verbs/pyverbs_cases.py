#!/usr/bin/env python3
"""pyverbs_cases.py NAME: one case of pyverbs, which is of libibverbs' own authors, on the cards vmasoft0 and vmasoft1.

Without a name it lists them, "NAME: sentence". tests/e2e/verbs_pyverbs.sh runs them, with VMASOFT_RULES=error: calls that
break a rule are to fail as on a real card.
"""
import errno
import socket
import struct
import sys
import time

import pyverbs.enums as e
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context, get_device_list
from pyverbs.flow import Flow, FlowAttr
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.spec import EthSpec, Ipv4ExtSpec, Ipv6Spec, TcpUdpSpec
from pyverbs.wr import SGE, RecvWR, SendWR

DEPTH, ROOM = 16, 2048
MAC_A, MAC_B = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
IP_A, IP_B, IP6_A, IP6_B = "10.9.0.1", "10.9.0.2", "fd00::1", "fd00::2"


def expect(seen, wanted, what):
    if seen != wanted:
        sys.exit(f"{what}: got {seen!r}, wanted {wanted!r}")


def expect_error(number, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except PyverbsRDMAError as error:
        expect(error.error_code, number, str(error))
    else:
        sys.exit(f"{call}: no error, wanted {errno.errorcode[number]}")


class Side:
    """A card, with what it takes to send and receive."""

    def __init__(self, name, cq=None):
        self.context = Context(name=name)
        self.pd = PD(self.context)
        self.channel = CompChannel(self.context)
        self.cq = cq(self.context) if cq else CQ(self.context, 4 * DEPTH, None, self.channel, 0)
        self.mr = MR(self.pd, 2 * DEPTH * ROOM, e.IBV_ACCESS_LOCAL_WRITE)
        self.qp = self.new_qp()

    def cap(self):
        return QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=4, max_recv_sge=4, max_inline_data=64)

    def new_qp(self, ready=True):
        init = QPInitAttr(qp_type=e.IBV_QPT_RAW_PACKET, scq=self.cq, rcq=self.cq, cap=self.cap(), sq_sig_all=0)
        return QP(self.pd, init, QPAttr(port_num=1) if ready else None)

    def piece(self, place, offset, length):
        return SGE(self.mr.buf + place * ROOM + offset, length, self.mr.lkey)

    def post_receive(self, place, qp=None):
        wr = RecvWR(wr_id=100 + place, num_sge=1, sg=[self.piece(DEPTH + place, 0, ROOM)])
        (qp or self.qp).post_recv(wr)

    def received(self, place, length):
        return self.mr.read(length, (DEPTH + place) * ROOM)

    def send(self, frame, wr_id=1, flags=e.IBV_SEND_SIGNALED):
        self.mr.write(frame, len(frame), 0)
        parts = [self.piece(0, 0, 14), self.piece(0, 14, len(frame) - 14)]
        self.qp.post_send(SendWR(wr_id=wr_id, opcode=e.IBV_WR_SEND, num_sge=2, sg=parts, send_flags=flags))

    def await_one(self, seconds=10):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            n, completions = self.cq.poll(1)
            if n:
                return completions[0]
        return None


def mac_bytes(mac):
    return bytes(int(part, 16) for part in mac.split(":"))


def frame(dst=MAC_B, version=4, proto=socket.IPPROTO_UDP, port=7000, data=b"x" * 100):
    if proto == socket.IPPROTO_UDP:
        inner = struct.pack("!HHHH", 4000, port, 8 + len(data), 0) + data
    else:
        inner = struct.pack("!HHIIBBHHH", 4000, port, 1, 1, 5 << 4, 0x10, 1000, 0, 0) + data
    if version == 4:
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(inner), 1, 0, 64, proto, 0, socket.inet_aton(IP_A),
                           socket.inet_aton(IP_B))
    else:
        head = struct.pack("!IHBB16s16s", 6 << 28, len(inner), proto, 64, socket.inet_pton(socket.AF_INET6, IP6_A),
                           socket.inet_pton(socket.AF_INET6, IP6_B))
    return mac_bytes(dst) + mac_bytes(MAC_A) + struct.pack("!H", 0x0800 if version == 4 else 0x86DD) + head + inner


def rule(qp, *specs, priority=0):
    attr = FlowAttr(num_of_specs=len(specs), port=1, priority=priority)
    for spec in specs:
        attr.specs.append(spec)
    return Flow(qp, attr)


def takes(specs, good, bad):
    """A rule of these takes the good frames, in order, and none of the bad ones."""
    a, b = Side("vmasoft0"), Side("vmasoft1")
    flow = rule(b.qp, *specs)
    for i in range(len(good) + 1):
        b.post_receive(i)
    for one in bad + good:
        a.send(one)
        expect(a.await_one().status, e.IBV_WC_SUCCESS, "send")
    for i, one in enumerate(good):
        completion = b.await_one()
        expect((completion.status, completion.opcode, completion.byte_len), (e.IBV_WC_SUCCESS, e.IBV_WC_RECV, len(one)),
               "receive")
        expect(b.received(i, len(one)), one, "frame")
    expect(b.await_one(0.2), None, "no more frames")
    flow.close()


# ---- cases: the docstring is the sentence ----

def device():
    """devices, ports and GIDs are described"""
    expect(sorted(one.name for one in get_device_list()), [b"vmasoft0", b"vmasoft1"], "devices")
    context = Context(name="vmasoft1")
    port = context.query_port(1)
    expect((port.state, port.link_layer, port.gid_tbl_len), (e.IBV_PORT_ACTIVE, e.IBV_LINK_LAYER_ETHERNET, 8), "port")
    expect(context.query_device().phys_port_cnt, 1, "ports")
    full = context.query_device_ex()
    expect(full.raw_packet_caps, e.IBV_RAW_PACKET_CAP_IP_CSUM, "raw packet capabilities")
    expect(context.query_gid(1, 0).gid[:4], "fe80", "GID")
    expect([context.query_gid_type(1, i) for i in range(2)],
           [e.IBV_GID_TYPE_SYSFS_IB_ROCE_V1, e.IBV_GID_TYPE_SYSFS_ROCE_V2], "types of GIDs")
    expect(context.query_pkey(1, 0), 0xFFFF, "pkey")
    expect_error(errno.EINVAL, context.query_port, 2)


def memory():
    """memory is registered, read and written, and bad requests are refused"""
    context = Context(name="vmasoft0")
    pd = PD(context)
    keys = set()
    for _ in range(20):
        with MR(pd, 5000, e.IBV_ACCESS_LOCAL_WRITE) as mr:
            mr.write(b"abc", 3, 4997)
            expect(mr.read(3, 4997), b"abc", "memory")
            keys.add(mr.lkey)
    expect(len(keys), 20, "different keys")
    expect_error(errno.EINVAL, MR, pd, 100, e.IBV_ACCESS_REMOTE_WRITE)
    expect_error(errno.EOPNOTSUPP, MR, pd, 100, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_ON_DEMAND)


def domains():
    """protection domains come and go, as many as there may be at a time"""
    context = Context(name="vmasoft0")
    for _ in range(2):
        pds = [PD(context) for _ in range(context.query_device().max_pd)]
        expect_error(errno.ENOMEM, PD, context)
        for one in pds:
            one.close()


def queue():
    """completion queues of all sizes that are possible, and of no other"""
    context = Context(name="vmasoft0")
    for size in (1, 2, 1000, context.query_device().max_cqe):
        with CQ(context, size, None, None, 0) as cq:
            expect(cq.cqe >= size, True, "size")
            expect(cq.poll(1)[0], 0, "an empty queue")
    expect_error(errno.EINVAL, CQ, context, 0, None, None, 0)
    expect_error(errno.EINVAL, CQ, context, context.query_device().max_cqe + 1, None, None, 0)
    expect_error(errno.EINVAL, CQ, context, 10, None, None, context.num_comp_vectors)


def queue_extended():
    """an extended queue gives each field that it was made for"""
    flags = (e.IBV_WC_EX_WITH_BYTE_LEN | e.IBV_WC_EX_WITH_QP_NUM | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
             e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
    a = Side("vmasoft0")
    b = Side("vmasoft1", lambda context: CQEX(context, CqInitAttrEx(cqe=DEPTH, wc_flags=flags)))
    flow = rule(b.qp, EthSpec(dst_mac=MAC_B))
    for i in range(3):
        b.post_receive(i)
        a.send(frame(data=b"y" * (100 + i)), flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_IP_CSUM)
        a.await_one()
    time.sleep(0.1)
    last = 0
    expect(b.cq.start_poll(PollCqAttr()), 0, "start_poll")
    for i in range(3):
        expect((b.cq.status, b.cq.wr_id), (e.IBV_WC_SUCCESS, 100 + i), "status and number")
        expect((b.cq.read_opcode(), b.cq.read_byte_len()), (e.IBV_WC_RECV, 142 + i), "operation and length")
        expect(b.cq.read_qp_num(), b.qp.qp_num, "queue pair")
        expect(b.cq.read_wc_flags() & e.IBV_WC_IP_CSUM_OK, e.IBV_WC_IP_CSUM_OK, "checksums")
        expect(abs(b.cq.read_completion_wallclock_ns() / 1e9 - time.time()) < 60, True, "wall clock")
        expect(b.cq.read_timestamp() > last, True, "time goes on")
        last = b.cq.read_timestamp()
        expect(b.cq.poll_next(), 0 if i < 2 else errno.ENOENT, "poll_next")
    b.cq.end_poll()
    expect(b.cq.start_poll(PollCqAttr()), errno.ENOENT, "an empty queue")
    flow.close()
    expect_error(errno.EOPNOTSUPP, CQEX, b.context, CqInitAttrEx(cqe=8, wc_flags=e.IBV_WC_EX_WITH_TM_INFO))


def events():
    """an armed queue tells its channel of a completion, once"""
    a, b = Side("vmasoft0"), Side("vmasoft1")
    flow = rule(b.qp, EthSpec(dst_mac=MAC_B))
    for i in range(3):
        b.cq.req_notify()
        b.post_receive(i)
        a.send(frame())
        a.await_one()
        b.channel.get_cq_event(b.cq)
        b.cq.ack_events(1)
        expect(b.await_one().wr_id, 100 + i, "completion")
    flow.close()


def rule_eth():
    """a rule for an address takes its frames, and no others"""
    spec = EthSpec(ether_type=0x0800, dst_mac=MAC_B)
    takes([spec], [frame(), frame(data=b"z" * 1000)], [frame(dst=MAC_A), frame(version=6)])


def rule_ipv4():
    """a rule for IPv4 addresses and a protocol"""
    spec = Ipv4ExtSpec(src_ip=IP_A, dst_ip=IP_B, proto=socket.IPPROTO_UDP)
    takes([spec], [frame()], [frame(version=6), frame(proto=socket.IPPROTO_TCP)])


def rule_ipv6():
    """a rule for IPv6 addresses"""
    spec = Ipv6Spec(src_ip=IP6_A, dst_ip=IP6_B, next_hdr=socket.IPPROTO_UDP)
    takes([EthSpec(ether_type=0x86DD, dst_mac=MAC_B), spec], [frame(version=6)],
          [frame(), frame(version=6, proto=socket.IPPROTO_TCP)])


def rule_udp():
    """a rule for a UDP port"""
    takes([EthSpec(ether_type=0x0800, dst_mac=MAC_B), Ipv4ExtSpec(dst_ip=IP_B),
           TcpUdpSpec(e.IBV_FLOW_SPEC_UDP, dst_port=7000)],
          [frame()], [frame(port=7001), frame(proto=socket.IPPROTO_TCP)])


def rule_tcp():
    """a rule for a TCP port"""
    takes([EthSpec(ether_type=0x0800, dst_mac=MAC_B), Ipv4ExtSpec(dst_ip=IP_B),
           TcpUdpSpec(e.IBV_FLOW_SPEC_TCP, dst_port=7000)],
          [frame(proto=socket.IPPROTO_TCP)], [frame(), frame(proto=socket.IPPROTO_TCP, port=7001)])


def send_calls():
    """ibv_wr_*: lists and inline data"""
    a, b = Side("vmasoft0"), Side("vmasoft1")
    init = QPInitAttrEx(qp_type=e.IBV_QPT_RAW_PACKET, scq=a.cq, rcq=a.cq, cap=a.cap(), pd=a.pd,
                        comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                        send_ops_flags=e.IBV_QP_EX_WITH_SEND)
    qp = QPEx(a.context, init, QPAttr(port_num=1))
    flow = rule(b.qp, EthSpec(dst_mac=MAC_B))
    for i in range(2):
        b.post_receive(i)
    short, long = frame(data=b"a" * 20), frame(data=b"b" * 500)
    a.mr.write(long, len(long), 0)
    a.mr.write(short, len(short), ROOM)
    qp.wr_start()
    qp.wr_id, qp.wr_flags = 1, 0
    qp.wr_send()
    qp.wr_set_inline_data(a.mr.buf + ROOM, len(short))
    qp.wr_id, qp.wr_flags = 2, e.IBV_SEND_SIGNALED
    qp.wr_send()
    qp.wr_set_sge_list(2, [a.piece(0, 0, 20), a.piece(0, 20, len(long) - 20)])
    qp.wr_complete()
    expect(a.await_one().wr_id, 2, "completion")
    expect(b.await_one().byte_len, len(short), "inline")
    expect(b.await_one().byte_len, len(long), "list")
    expect((b.received(0, len(short)), b.received(1, len(long))), (short, long), "frames")
    flow.close()


def states():
    """a queue pair goes through its states, and no other way"""
    a = Side("vmasoft0")
    qp = a.new_qp(ready=False)
    expect(qp.query(e.IBV_QP_STATE)[0].qp_state, e.IBV_QPS_RESET, "state")
    expect_error(errno.EINVAL, qp.modify, QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    expect_error(errno.EINVAL, qp.modify, QPAttr(qp_state=e.IBV_QPS_INIT), e.IBV_QP_STATE)
    expect_error(errno.EINVAL, a.post_receive, 0, qp)
    qp.to_rts(QPAttr(port_num=1))
    expect(qp.query(e.IBV_QP_STATE)[0].qp_state, e.IBV_QPS_RTS, "state")
    a.post_receive(0, qp)
    qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    completion = a.await_one()
    expect((completion.status, completion.wr_id), (e.IBV_WC_WR_FLUSH_ERR, 100), "flushed")
    for kind in (e.IBV_QPT_RC, e.IBV_QPT_UD):
        init = QPInitAttr(qp_type=kind, scq=a.cq, rcq=a.cq, cap=a.cap())
        expect_error(errno.EOPNOTSUPP, QP, a.pd, init)


def broken_memory():
    """memory outside a registration gives an error completion and an event"""
    a = Side("vmasoft0")
    piece = SGE(a.mr.buf + 2 * DEPTH * ROOM - 10, 60, a.mr.lkey)
    a.qp.post_send(SendWR(wr_id=5, opcode=e.IBV_WR_SEND, num_sge=1, sg=[piece], send_flags=e.IBV_SEND_SIGNALED))
    completion = a.await_one()
    expect((completion.status, completion.wr_id), (e.IBV_WC_LOC_PROT_ERR, 5), "completion")
    expect(a.qp.query(e.IBV_QP_STATE)[0].qp_state, e.IBV_QPS_ERR, "state")
    event = a.context.get_async_event()
    expect(event.event_type, e.IBV_EVENT_QP_FATAL, "event")
    event.ack()


def broken_queue():
    """a completion queue that overruns gives an event"""
    a = Side("vmasoft0")
    cq = CQ(a.context, 2, None, None, 0)
    qp = QP(a.pd, QPInitAttr(qp_type=e.IBV_QPT_RAW_PACKET, scq=cq, rcq=cq, cap=a.cap(), sq_sig_all=0), QPAttr(port_num=1))
    for i in range(3):
        a.post_receive(i, qp)
    qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    event = a.context.get_async_event()
    expect(event.event_type, e.IBV_EVENT_CQ_ERR, "event")
    event.ack()
    expect([cq.poll(1)[1][0].wr_id for _ in range(2)], [100, 101], "what was there before")
    expect(cq.poll(1)[0], 0, "and no more")


CASES = [device, memory, domains, queue, queue_extended, events, rule_eth, rule_ipv4, rule_ipv6, rule_udp, rule_tcp,
         send_calls, states, broken_memory, broken_queue]

if len(sys.argv) < 2:
    for case in CASES:
        print(f"{case.__name__}: {case.__doc__}")
else:
    {case.__name__: case for case in CASES}[sys.argv[1]]()
