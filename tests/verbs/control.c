/* Faults that a test sets, and counters that it reads. */
#include "card.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* "ENOMEM": the number, 0 if no error has this name. */
static int error_by_name(const char *name)
{
	for (int error = 1; error < 134; error++) {
		const char *is = strerrorname_np(error);

		if (is && strcmp(is, name) == 0)
			return error;
	}
	return 0;
}

static int card_control_print_state(char *answer, size_t size)
{
	int len = 0;

#define X(name, text)                                                                                                  \
	if (len < (int)size)                                                                                           \
		len += snprintf(answer + len, size - (size_t)len, #name " %" PRIu64 "\n", card.counts.name);
	CARD_COUNTS
#undef X
	return 0;
}

static int card_control_set_error(int *error, const char *word, const char *name)
{
	*error = strcmp(word, "fail") == 0 ? error_by_name(name) : 0;
	return *error || strcmp(word, "ok") == 0 ? 0 : EINVAL;
}

static int card_control_remove_device(void)
{
	card_send_async_event_to_all(IBV_EVENT_DEVICE_FATAL);
	card.faults.is_removed = true;
	card_detach_contexts();
	port_announce_link_state();
	return 0;
}

static int card_control_insert_device(void)
{
	card.faults.is_removed = false;
	port_announce_link_state();
	return 0;
}

static int card_control_set_port_state(const char *word)
{
	if (strcmp(word, "down") != 0 && strcmp(word, "up") != 0)
		return EINVAL;
	card.faults.is_down = strcmp(word, "down") == 0;
	port_announce_link_state();
	return 0;
}

int card_control_execute_command(const char *command, char *answer, size_t size)
{
	char what[32] = "", word[32] = "", name[32] = "";
	int n = sscanf(command, "%31s %31s %31s", what, word, name);
	uint32_t number = (uint32_t)strtoul(name, NULL, 10);
	struct card_faults *faults = &card.faults;

	if (strcmp(what, "show") == 0)
		return card_control_print_state(answer, size);
	if (strcmp(what, "rules") == 0 && n == 1)
		return card_rules_print(answer, size) < 0 ? EINVAL : 0;
	if (strcmp(what, "remove") == 0)
		return card_control_remove_device();
	if (strcmp(what, "insert") == 0)
		return card_control_insert_device();
	if (strcmp(what, "replace") == 0)
		return card_control_remove_device() || card_control_insert_device();
	if (strcmp(what, "port") == 0)
		return card_control_set_port_state(word);
	if (strcmp(what, "rules") == 0 && strcmp(word, "slow") == 0)
		faults->rules_ms = number;
	else if (strcmp(what, "rules") == 0 && (strcmp(word, "hold") == 0 || strcmp(word, "go") == 0))
		faults->rules_are_held = strcmp(word, "hold") == 0;
	else if (strcmp(what, "rules") == 0)
		return card_control_set_error(&faults->rules_error, word, name);
	else if (strcmp(what, "registration") == 0)
		return card_control_set_error(&faults->registration_error, word, name);
	else if (strcmp(what, "completions") == 0 && strcmp(word, "slow") == 0)
		faults->cq_us = number;
	else if (strcmp(what, "wire") == 0 && strcmp(word, "loses") == 0)
		faults->loss_ppm = number;
	else if (strcmp(what, "sends") == 0 && strcmp(word, "fail") == 0)
		faults->sends_to_fail = number;
	else if (strcmp(what, "receives") == 0 && strcmp(word, "fail") == 0)
		faults->receives_to_fail = number;
	else
		return EINVAL;
	return 0;
}

/* As a client: one command, its answer on standard output. */
int card_control_send_command(const char *path, const char *command)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	static struct card_request request = {.type = CARD_CONTROL};
	static struct card_reply reply;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	snprintf(request.text, sizeof(request.text), "%s", command);
	if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) ||
	    send(fd, &request, sizeof(request), MSG_NOSIGNAL) != sizeof(request) ||
	    recv(fd, &reply, sizeof(reply), 0) != sizeof(reply)) {
		perror(path);
		return 1;
	}
	close(fd);
	fputs(reply.text, stdout);
	if (reply.error)
		fprintf(stderr, "card: '%s': %s\n", command, strerror(reply.error));
	return reply.error != 0;
}
