/*
 * The port: a TAP interface, which is the kernel's side of the card, and the wire. The wire is a SOCK_SEQPACKET
 * connection to another card, a frame is a message; or it is a plug that gives each frame back.
 *
 * A full wire holds the queues and the kernel's interface back, as pause frames do. Nothing is lost there.
 */
#include "card.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
	PORT_BURST = 64,            /* frames of one side before the other gets its turn */
	PORT_LOOP_FRAMES_MAX = 256, /* frames in a plug */
	PORT_WIRE_BYTES = 1 << 20,
};

struct port_frame {
	size_t len;
	uint8_t bytes[FRAME_MAX];
};

static struct {
	int tap, wire, listener;
	bool is_plug, is_full, was_up;
	struct port_frame held; /* met a full wire, and goes first when there is room */
	struct port_frame plug[PORT_LOOP_FRAMES_MAX];
	uint32_t plug_from, plug_to;
} port = {.tap = -1, .wire = -1, .listener = -1};

bool port_is_up(void)
{
	return (port.wire >= 0 || port.is_plug) && !card.faults.is_down && !card.faults.is_removed;
}

void port_announce_link_state(void)
{
	bool is_up = port_is_up();

	if (is_up == port.was_up)
		return;
	port.was_up = is_up;
	ioctl(port.tap, TUNSETCARRIER, &(int){is_up});
	if (!card.faults.is_removed)
		card_send_async_event_to_all(is_up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

static void port_set_wire_full(bool is_full)
{
	if (port.is_full == is_full)
		return;
	port.is_full = is_full;
	loop_set_events(port.wire, is_full ? EPOLLIN | EPOLLOUT : EPOLLIN);
	loop_set_events(port.tap, is_full ? 0 : EPOLLIN);
}

bool port_can_send(void)
{
	return !port.is_full && port.plug_to - port.plug_from < PORT_LOOP_FRAMES_MAX;
}

static void card_wire_disconnect(void)
{
	if (port.is_full)
		card.counts.tx_lost++;
	port_set_wire_full(false);
	loop_remove_fd(port.wire);
	close(port.wire);
	port.wire = -1;
	port_announce_link_state();
}

/* 0, or -1 if there is no room now. */
static int card_wire_send_frame(const uint8_t *frame, size_t len)
{
	while (send(port.wire, frame, len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
		if (errno == EAGAIN)
			return -1;
		if (errno != EINTR) {
			card.counts.tx_lost++;
			card_wire_disconnect();
			break;
		}
	}
	return 0;
}

/* By chance, of a generator that begins anew with each card. */
static bool card_wire_loses_frame(void)
{
	static uint64_t state = 1;

	state = state * 6364136223846793005u + 1442695040888963407u;
	return (state >> 33) % 1000000 < card.faults.loss_ppm;
}

/* Whoever sends has asked port_can_send. */
void port_send_frame(const uint8_t *frame, size_t len)
{
	struct port_frame *place = &port.held;

	if (!port_is_up()) {
		card.counts.tx_lost++;
		return;
	}
	if (card.faults.loss_ppm != 0 && card_wire_loses_frame()) {
		card.counts.tx_dropped++;
		return;
	}
	if (port.is_plug)
		place = &port.plug[port.plug_to++ % PORT_LOOP_FRAMES_MAX];
	else if (card_wire_send_frame(frame, len) == 0)
		return;
	else
		port_set_wire_full(true);
	place->len = len;
	memcpy(place->bytes, frame, len);
}

bool port_deliver_looped_frames(void)
{
	uint32_t to = port.plug_to;
	bool any = port.plug_from != to;

	while (port.plug_from != to) {
		struct port_frame *frame = &port.plug[port.plug_from % PORT_LOOP_FRAMES_MAX];

		card.counts.rx_frames++;
		card_rules_steer_frame(frame->bytes, frame->len);
		port.plug_from++;
	}
	return any;
}

bool port_has_looped_frames(void)
{
	return port.plug_from != port.plug_to;
}

void port_write_frame_to_tap(const uint8_t *frame, size_t len)
{
	if (card.faults.is_removed)
		return;
	if (write(port.tap, frame, len) == (ssize_t)len)
		card.counts.rx_tap++;
	else
		card.counts.rx_tap_lost++;
}

/* ---- what the loop calls ---- */

static void card_tap_on_readable(void *owner, uint32_t events)
{
	uint8_t frame[FRAME_MAX];
	ssize_t len;

	(void)owner, (void)events;
	for (int i = 0; i < PORT_BURST && port_can_send(); i++) {
		len = read(port.tap, frame, sizeof(frame));
		if (len < FRAME_ETH)
			return;
		for (; len < FRAME_MIN; len++)
			frame[len] = 0;
		card.counts.tx_tap++;
		port_send_frame(frame, (size_t)len);
	}
}

static void card_wire_on_readable(void *owner, uint32_t events)
{
	uint8_t frame[FRAME_MAX];
	ssize_t len;

	(void)owner;
	if (events & EPOLLOUT && port.is_full && card_wire_send_frame(port.held.bytes, port.held.len) == 0 &&
	    port.wire >= 0)
		port_set_wire_full(false);
	for (int i = 0; i < PORT_BURST && port.wire >= 0; i++) {
		len = recv(port.wire, frame, sizeof(frame), MSG_DONTWAIT);
		if (len < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (len <= 0) {
			card_wire_disconnect();
			return;
		}
		if (len < FRAME_ETH || !port_is_up())
			continue;
		card.counts.rx_frames++;
		card_rules_steer_frame(frame, (size_t)len);
	}
}

static int card_wire_use_connection(int fd)
{
	int bytes = PORT_WIRE_BYTES;

	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	port.wire = fd;
	if (loop_add_fd(fd, card_wire_on_readable, NULL))
		return -1;
	port_announce_link_state();
	return 0;
}

/* A second card that plugs in is turned away. */
static void card_listener_on_readable(void *owner, uint32_t events)
{
	int fd = accept4(port.listener, NULL, NULL, SOCK_CLOEXEC);

	(void)owner, (void)events;
	if (fd >= 0 && (port.wire >= 0 || card_wire_use_connection(fd)))
		close(fd);
}

/* ---- opening ---- */

int port_read_tap_mac_and_mtu(void)
{
	struct ifreq ifr = {0};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc;

	snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", card.tap_name);
	rc = ioctl(fd, SIOCGIFHWADDR, &ifr);
	memcpy(card.mac, ifr.ifr_hwaddr.sa_data, sizeof(card.mac));
	if (rc == 0)
		rc = ioctl(fd, SIOCGIFMTU, &ifr);
	if (rc == 0)
		card.mtu = (uint32_t)ifr.ifr_mtu;
	close(fd);
	return rc;
}

int port_open_tap(const char *name)
{
	struct ifreq ifr = {.ifr_flags = IFF_TAP | IFF_NO_PI};

	snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", name);
	port.tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (port.tap < 0 || ioctl(port.tap, TUNSETIFF, &ifr))
		return -1;
	snprintf(card.tap_name, sizeof(card.tap_name), "%s", name);
	ioctl(port.tap, TUNSETCARRIER, &(int){0});
	return port_read_tap_mac_and_mtu() ? -1 : loop_add_fd(port.tap, card_tap_on_readable, NULL);
}

int port_open_wire(enum card_wire_kind kind, const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd;

	if (kind == CARD_WIRE_LOOPS) {
		port.is_plug = true;
		port_announce_link_state();
	}
	if (kind == CARD_WIRE_LOOPS || kind == CARD_WIRE_NONE)
		return 0;
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	if (kind == CARD_WIRE_CONNECTS)
		return connect(fd, (struct sockaddr *)&addr, sizeof(addr)) ? -1 : card_wire_use_connection(fd);
	port.listener = fd;
	if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) || listen(fd, 1))
		return -1;
	return loop_add_fd(fd, card_listener_on_readable, NULL);
}
