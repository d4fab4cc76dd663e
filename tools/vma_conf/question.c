/* question.c - from words to a question. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "question.h"

static bool parse_port(const char *text, uint16_t *port)
{
	char *end;
	unsigned long value;

	if (*text < '0' || *text > '9')
		return false;
	value = strtoul(text, &end, 10);
	*port = (uint16_t)value;
	return *end == '\0' && value <= UINT16_MAX;
}

static bool parse_address_and_port(const char *text, struct vma_rules_name *name)
{
	const char *const colon = strchrnul(text, ':');
	const size_t len = (size_t)(colon - text);
	char address[INET_ADDRSTRLEN];
	struct in_addr in;

	if (len >= sizeof(address))
		return false;
	memcpy(address, text, len);
	address[len] = '\0';
	if (inet_pton(AF_INET, address, &in) != 1)
		return false;
	*name = (struct vma_rules_name){.address = ntohl(in.s_addr)};
	return *colon == '\0' || parse_port(colon + 1, &name->port);
}

const char *parse_rule_query_words(struct question *question, char *const *words, int count)
{
	int most;

	*question = (struct question){0};
	if (vma_rules_role_parse(words[0], &question->role) < 0)
		return words[0];
	most = (int)vma_rules_role_address_count(question->role);
	for (int i = 1; i < count; i++)
		if (i > most || !parse_address_and_port(words[i], &question->names[i - 1]))
			return words[i];
	return NULL;
}
