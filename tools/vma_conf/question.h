/* question.h - the words of a question to the rules: a role, and the names of a socket. */
#ifndef VMA_CONF_QUESTION_H
#define VMA_CONF_QUESTION_H

#include <vma/rules.h>

struct question {
	enum vma_rules_role role;
	struct vma_rules_name names[2]; /* what is not given is 0.0.0.0 and port 0 */
};

/* words: ROLE ADDRESS[:PORT] [ADDRESS[:PORT]]. NULL, or the word that is not understood, or one too many. */
const char *parse_rule_query_words(struct question *question, char *const *words, int count);

#endif
