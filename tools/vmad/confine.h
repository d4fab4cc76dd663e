/*
 * confine - vmad's limits from its start on: few capabilities, no way to new ones, and the system calls of a service
 * that executes nothing.
 */
#ifndef VMAD_CONFINE_H
#define VMAD_CONFINE_H

/*
 * For this process and all that it forks, for good; before it has threads. -errno: capabilities cannot be given up. If
 * the kernel filters no system calls, a line says so, and that is all.
 */
int vmad_confine(void);

#endif
