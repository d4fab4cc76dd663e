/*
 * fuzz_capture - a hostile process: the input is the head, the reader's place, and the slots behind it. The reader must
 * stay within its copies, end each text, and come to an end. Every other slot says that the record before goes on.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../capture_priv.h"
#include "../capture_read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void capture_abort_unless(bool holds)
{
	if (!holds)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct vma_capture *capture;
	struct vma_capture_reader *reader = NULL;
	struct vma_capture_info info;
	uint64_t words[2] = {0};
	uint8_t *frame = malloc(VMA_CAPTURE_DATA_MAX);
	unsigned records = 0;

	if (capture == NULL)
		capture = mmap(NULL, sizeof(*capture), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	capture_abort_unless(frame != NULL && capture != MAP_FAILED);
	atomic_store(&capture->magic, CAPTURE_MAGIC);
	capture_abort_unless(vma_capture_open_memory(capture, &reader) == 0);
	memcpy(words, data, size < sizeof(words) ? size : sizeof(words));
	data += size < sizeof(words) ? size : sizeof(words);
	size -= size < sizeof(words) ? size : sizeof(words);
	atomic_store(&capture->head, words[0]);
	reader->next = words[1];
	if (words[0] - words[1] > VMA_CAPTURE_SLOTS)
		reader->next = words[0] - VMA_CAPTURE_SLOTS;
	if (words[0] < words[1])
		reader->next = words[0];
	/* Slots as long as the input lasts; each has the state that the reader looks for, so that it looks further. */
	for (uint64_t n = reader->next; n != words[0] && size > 0; n++) {
		struct capture_slot *slot = &capture->slots[n % VMA_CAPTURE_SLOTS];
		const size_t part = size < 80 ? size : 80;

		memcpy((void *)slot->words, data, part);
		atomic_store(&slot->state,
		             data[part - 1] % 8 == 7
		                     ? data[0]
		                     : CAPTURE_STATES * n + (data[part - 1] % 2 != 0 ? CAPTURE_MORE : CAPTURE_FIRST));
		data += part;
		size -= part;
	}
	while (vma_capture_next(reader, 0, &info, frame) == 1) {
		capture_abort_unless(info.captured <= VMA_CAPTURE_DATA_MAX && info.captured <= info.len);
		capture_abort_unless(info.kind < VMA_CAPTURE_KINDS &&
		                     memchr(info.text, '\0', sizeof(info.text)) != NULL);
		capture_abort_unless(++records <= VMA_CAPTURE_SLOTS);
	}
	vma_capture_next(reader, UINT64_MAX, &info, frame);
	vma_capture_close(reader);
	free(frame);
	return 0;
}
