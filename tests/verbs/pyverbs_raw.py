"""Raw packets, with the classes and the traffic of rdma-core's tests.

Those tests use extended completion queues, events and ibv_wr_* with RC and UD queue pairs only, which this card has not.
tests/e2e/verbs_pyverbs.sh puts this file beside them, as the module tests.test_vmasoft_raw.
"""
import pyverbs.enums as e
from pyverbs.qp import QPCap
import tests.utils as u
from tests.base import RDMATestCase
from tests.test_cq_events import create_cq_with_comp_channel
from tests.test_cqex import create_ex_cq
from tests.test_flow import FlowRes
from tests.test_qpex import create_qp_ex

ROUNDS = 100


class CqExRaw(FlowRes):
    def create_cq(self):
        create_ex_cq(self)


class CqEventsRaw(FlowRes):
    def create_cq(self):
        create_cq_with_comp_channel(self)


class QpExRaw(FlowRes):
    def create_qps(self):
        create_qp_ex(self, e.IBV_QPT_RAW_PACKET, e.IBV_QP_EX_WITH_SEND)


class ShallowRaw(FlowRes):
    def create_qp_cap(self):
        return QPCap(max_send_wr=10, max_recv_wr=10)


class RawTest(RDMATestCase):
    def create_players(self, resource):
        self.client, self.server = resource(**self.dev_info), resource(**self.dev_info)
        self.flow = self.server.create_flow([self.server.create_eth_spec()])

    def test_raw_traffic_cq_ex(self):
        self.create_players(CqExRaw)
        u.raw_traffic(self.client, self.server, ROUNDS)

    def test_raw_traffic_cq_events(self):
        self.create_players(CqEventsRaw)
        u.raw_traffic(self.client, self.server, ROUNDS)

    def test_raw_traffic_qp_ex_old_send(self):
        self.create_players(QpExRaw)
        u.raw_traffic(self.client, self.server, ROUNDS)

    def test_raw_traffic_qp_ex_send(self):
        self.create_players(QpExRaw)
        receive = u.get_recv_wr(self.server)
        for _ in range(ROUNDS):
            u.post_recv(self.server, receive)
            _, piece, message = u.get_send_elements_raw_qp(self.client)
            u.send(self.client, piece, e.IBV_QP_EX_WITH_SEND, new_send=True)
            u.poll_cq(self.client.cq)
            u.poll_cq(self.server.cq)
            u.validate_raw(self.server.mr.read(self.server.msg_size, 0), message, [])

    def test_post_receive_qp_state_bad_flow(self):
        self.create_players(ShallowRaw)
        u.post_rq_state_bad_flow(self)

    def test_full_rq_bad_flow(self):
        self.create_players(ShallowRaw)
        u.full_rq_bad_flow(self)

    def test_rq_with_larger_sgl_bad_flow(self):
        self.create_players(ShallowRaw)
        u.create_rq_with_larger_sgl_bad_flow(self)
