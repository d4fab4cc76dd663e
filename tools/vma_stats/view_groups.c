/* view_groups - view 4: multicast groups, and the sockets that have joined them. */
#include "view.h"

#define GROUPS_MAX 4096

struct member {
	uint64_t group, fd;
};

static unsigned collect_multicast_memberships(const struct view_input *in, struct member *members)
{
	unsigned n = 0;

	for (size_t i = 0; i < in->now->count; i++) {
		const struct vma_stats_socket *socket = &in->now->items[i].socket;
		const _Atomic uint64_t *groups = &socket->group_0;

		if (!view_is_selected_socket(in, &in->now->items[i]))
			continue;
		for (uint64_t g = 0; g < view_read_counter(&socket->groups) && g < VMA_STATS_SOCKET_GROUPS; g++)
			if (n < GROUPS_MAX)
				members[n++] =
				        (struct member){view_read_counter(&groups[g]), view_read_counter(&socket->fd)};
	}
	return n;
}

/* In the order in which they were met; each once, with all its sockets. */
void view_groups(const struct view_input *in)
{
	static struct member members[GROUPS_MAX];
	const unsigned n = collect_multicast_memberships(in, members);
	char text[VIEW_NAME_BYTES], field[VIEW_NAME_BYTES + 2];

	fputs("VMA Group Membership Information\n"
	      "Group                fd number\n"
	      "------------------------------\n",
	      in->out);
	for (unsigned i = 0; i < n; i++) {
		bool met = false;

		for (unsigned j = 0; j < i; j++)
			met |= members[j].group == members[i].group;
		if (met)
			continue;
		view_format_ipv4_address(text, members[i].group);
		snprintf(field, sizeof(field), "[%s]", text);
		fprintf(in->out, "%-22s", field);
		for (unsigned j = i; j < n; j++)
			if (members[j].group == members[i].group)
				fprintf(in->out, "%s%" PRIu64, j == i ? "" : " ", members[j].fd);
		fputc('\n', in->out);
	}
}
