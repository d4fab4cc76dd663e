/* vmad_state - the answers of vmad as a text: the interface, then a table of clients and one of queue pairs. */
#include <errno.h>
#include <string.h>

#include "vmad_state.h"

static const char *const client_states[] = {
#define X(name, text) text,
        VMA_VMAD_CLIENT_STATES(X)
#undef X
};
static const char *const queue_pair_states[] = {
#define X(name, text) text,
        VMA_VMAD_QUEUE_PAIR_STATES(X)
#undef X
};

#define NAME_OF_NUMBER(words, number) ((number) < sizeof(words) / sizeof((words)[0]) ? (words)[number] : "?")

static void print_vmad_interface_state(const struct vma_vmad_interface *i, const char *name, FILE *out)
{
	fprintf(out, "interface %s: %u device queues, MTU %u%s\n", name, i->queues, i->mtu,
	        i->generic != 0 ? ", generic XDP" : "");
	fprintf(out, "queue pairs %u; flows %u; claimed ports %u; flows waited for %u\n", i->queue_pairs, i->flows,
	        i->claims, i->waiters);
	fputs("minisocks:", out);
#define X(name, text) fprintf(out, " " text " %u;", i->minisocks_##name);
	VMA_VMAD_MINISOCKS(X)
#undef X
	fprintf(out, " peers to reset %u; connections not accepted %u\n", i->resets, i->parked);
	fprintf(out, "receive frames %u: in fill rings %u; vmad's %u; missing %u. Transmit frames %u\n", i->rx_frames,
	        i->rx_ready, i->rx_spare, i->rx_missing, i->tx_frames);
}

/* Numbers of the set bits: "0,3"; "-": none. */
static void print_set_bit_numbers(uint64_t bits, FILE *out)
{
	const char *before = "";

	if (bits == 0)
		fputc('-', out);
	for (; bits != 0; bits &= bits - 1) {
		fprintf(out, "%s%d", before, __builtin_ctzll(bits));
		before = ",";
	}
}

static void print_vmad_clients(const struct vma_vmad_state *state, FILE *out)
{
	fputs("\nclient PID        user       state    queue pairs\n", out);
	for (unsigned i = 0; i < state->clients; i++) {
		const struct vma_vmad_client *client = &state->client[i];

		fprintf(out, "%-6u %-10d %-10u %-8s ", i, client->pid, client->uid,
		        NAME_OF_NUMBER(client_states, client->state));
		print_set_bit_numbers(client->queue_pairs, out);
		fputc('\n', out);
	}
}

static int pid_of(const struct vma_vmad_state *state, uint32_t queue_pair)
{
	for (unsigned i = 0; i < state->clients; i++)
		if (queue_pair < 64 && (state->client[i].queue_pairs >> queue_pair & 1))
			return state->client[i].pid;
	return 0;
}

static void print_queue_pairs(const struct vma_vmad_state *state, FILE *out)
{
	fputs("\nqueue pair PID        state    flows  claimed waits  rx ring held   quota  tx ring frames in flight\n",
	      out);
	for (unsigned i = 0; i < state->queue_pairs; i++) {
		const struct vma_vmad_queue_pair *pair = &state->queue_pair[i];

		fprintf(out, "%-10u %-10d %-8s %-6u %-7u %-6u %-7u %-6u %-6u %-7u %-6u %u\n", pair->number,
		        pid_of(state, pair->number), NAME_OF_NUMBER(queue_pair_states, pair->state), pair->flows,
		        pair->claims, pair->waiters, pair->rx_entries, pair->rx_held, pair->rx_quota, pair->tx_entries,
		        pair->tx_frames, pair->tx_in_flight);
	}
}

void vmad_state_print(const struct vma_vmad_state *state, const char *interface, FILE *out)
{
	print_vmad_interface_state(&state->interface, interface, out);
	print_vmad_clients(state, out);
	print_queue_pairs(state, out);
}

int vmad_state_show(const char *interface, FILE *out)
{
	static struct vma_vmad_state state;
	const int rc = vma_vmad_query_state(interface, &state);

	if (rc == 0)
		vmad_state_print(&state, interface, out);
	return rc;
}

const char *vmad_state_error_text(int rc)
{
	switch (rc) {
	case -ENODEV:
		return "there is no such interface";
	case -ECONNREFUSED:
		return "no vmad runs for it";
	case -EPERM:
		return "its vmad refuses this user: only root and its own user may ask";
	case -EOPNOTSUPP:
		return "its vmad is of an older version";
	case -EPIPE:
		return "its vmad does not answer";
	default:
		return strerrordesc_np(-rc);
	}
}
