/* file - descriptors and the objects behind them, as the files of this folder share them. */
#ifndef VMA_SOCK_FD_FILE_H
#define VMA_SOCK_FD_FILE_H

#include <vma/sock.h>

/* file.c: the list of all files. */
void file_list_add(struct vma_file *file);
void file_list_remove(struct vma_file *file);
void files_lock_before_fork(void);
void files_unlock_after_fork_in_parent(void);
void files_reset_in_fork_child(void);

/* watch.c: tells all watchers that descriptor fd, or with -1 the last one, is being closed. Inside. */
void file_notify_closed(struct vma_file *file, int fd);

/* table.c: the place of a number, made if need be; NULL: no memory, or no number that a kernel gives out. */
struct vma_file *_Atomic *fd_slot(int fd);
void fd_raise_highest(int fd);
struct vma_file *fd_table_peek(int fd); /* what stands in the slot; makes none */
void fd_guards_close_parents_in_fork_child(void);
struct vma_file *fd_guard_file(void); /* what stands in the slots of the library's own descriptors */

#endif
