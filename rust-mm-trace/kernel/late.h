/* SPDX-License-Identifier: GPL-2.0 */
/* Points at which the tracer can be made slow, to look for races. */
#ifndef _MM_VMTRACE_LATE_H
#define _MM_VMTRACE_LATE_H

#include <linux/jump_label.h>

/* Named by vmtrace_late_names. The points from the first sleeping one on sleep. */
enum vmtrace_late_point {
	VMTRACE_LATE_FAULTING,	/* a PTE was read without its lock */
	VMTRACE_LATE_FAULTED,	/* a fault has dropped its PTE's lock */
	VMTRACE_LATE_RESERVED,	/* a number was taken */
	VMTRACE_LATE_EVICTING,	/* a member was chosen, its PTE is not locked */
	VMTRACE_LATE_FLUSHING,	/* a PTE was changed, and the TLB not flushed */
	VMTRACE_LATE_ADMITTING,	/* the victim is gone, the page is no member */
	VMTRACE_LATE_ADMITTED,	/* the page is a member, its PTE is disabled */
	VMTRACE_LATE_ABORTING,	/* a number is about to be given up */
	VMTRACE_LATE_FILTERING,	/* a PTE is about to be stored */
	VMTRACE_LATE_CLOSING,	/* a PTE was cleared, its page is a member */
	VMTRACE_LATE_CLOSED,	/* a stay was closed, and the TLB not flushed */
	VMTRACE_LATE_LOGGING,	/* an event has no number */
	VMTRACE_LATE_LOGGED,	/* an event was logged that is not true yet */
	VMTRACE_LATE_AUDITING,	/* a member was chosen, as in EVICTING */
	VMTRACE_LATE_NUMBERED,	/* an address space has a number, and no event */
	VMTRACE_LATE_COUNTING,	/* stays have ended, and are not counted */
	VMTRACE_LATE_SLEEPS,
	VMTRACE_LATE_ATTACHING = VMTRACE_LATE_SLEEPS, /* no PTE was disabled */
	VMTRACE_LATE_ATTACHED,	/* all were, and the TLB was not flushed */
	VMTRACE_LATE_DETACHING,	/* an address space has lost its number */
	VMTRACE_LATE_OPENING,	/* the set is open, and the former era goes on */
	VMTRACE_LATE_NUMBERING,	/* an address space is to have a number */
	VMTRACE_LATE_MADE,	/* an address space has a number, and no task */
	VMTRACE_LATE_DESCRIBING, /* a visit comes to a process, or to more threads */
	VMTRACE_LATE_RESIZING,	/* where a set of another size begins was read */
	VMTRACE_LATE_POINTS,
};

struct dentry;

#ifdef CONFIG_VMTRACE_DEBUG

/* In a struct, so that Rust can look at it. */
struct vmtrace_late_key {
	struct static_key_false key;
};

extern struct vmtrace_late_key vmtrace_late_key;

/* Changed without a lock if vmtrace_break=race. */
extern unsigned long vmtrace_raced;

void __vmtrace_late(enum vmtrace_late_point point);
bool __vmtrace_late_apart(void);
void vmtrace_late_break(void);
void vmtrace_late_race(void);
void vmtrace_late_init(struct dentry *dir);

static __always_inline void vmtrace_late(enum vmtrace_late_point point)
{
	if (static_branch_unlikely(&vmtrace_late_key.key))
		__vmtrace_late(point);
}

#else

static inline void vmtrace_late(enum vmtrace_late_point point)
{
}

#endif /* CONFIG_VMTRACE_DEBUG */

#endif /* _MM_VMTRACE_LATE_H */
