/* payload - bytes that tell who they are, for cases and peers alike. */
#ifndef PAYLOAD_H
#define PAYLOAD_H

#include <stddef.h>

/* seed: 0..63 */
void fill(void *buf, size_t len, int seed);
/* The seed that these bytes were filled with; -1: none. */
int seed_of_payload(const void *buf, size_t len);

#endif
