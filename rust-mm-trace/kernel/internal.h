/* SPDX-License-Identifier: GPL-2.0 */
/* The border between the C and the Rust of mm/vmtrace: plain values only. */
#ifndef _MM_VMTRACE_INTERNAL_H
#define _MM_VMTRACE_INTERNAL_H

#include <linux/mm_types.h>
#include <linux/tracepoint-defs.h>
#include <linux/types.h>
#include <linux/utsname.h>
#include <linux/zstd.h>
#include <uapi/linux/vmtrace.h>

#include "late.h"

/* After those of <linux/vmtrace.h>: what only mm/vmtrace needs. */
enum {
	VMTRACE_BREAK_ONESET = 27,	/* a set of its own: all join the first one */
	VMTRACE_BREAK_NOBURY,		/* the last records of a set */
	VMTRACE_BREAK_NOBIRTH,		/* checkpoints wait for what is being made */
	VMTRACE_BREAK_NODESCRIBE,	/* what is copied is described before */
	VMTRACE_BREAK_KEEPLEFT,		/* what a filter leaves out is not written */
	/* These share a bit of vmtrace_header.debug_break, VMTRACE_BREAK_OTHERS. */
	VMTRACE_BREAK_NOSEAL,		/* whether the set is sealed */
	VMTRACE_BREAK_NOSTAMP,		/* whether a change has a later number */
	VMTRACE_BREAK_NOFETCH,		/* fetches that a page denies */
	VMTRACE_BREAK_NOSAME,		/* whether a locked PTE is the one found */
	VMTRACE_BREAK_NOLIVE,		/* whether a stay has ended meanwhile */
	VMTRACE_BREAK_LATE,		/* no protection: all takes long */
	VMTRACE_BREAK_RACE,		/* no protection: a data race */
};

/*
 * The handle of a page table entry: the address of its word, see vmtrace_entry(). In its
 * low bits: what kind of entry a huge page has.
 */
#define VMTRACE_ENTRY_PMD	1UL
#define VMTRACE_ENTRY_PUD	2UL
#define VMTRACE_ENTRY_HUGE	(VMTRACE_ENTRY_PMD | VMTRACE_ENTRY_PUD)

/* Bit of a word: the page is a member. */
#define VMTRACE_WORD_MEMBER	1UL

/*
 * In mm_struct.vmtrace_id, beside the number: events are logged, references are
 * not. Both are in one word, so that a number is never seen without its
 * meaning.
 */
#define VMTRACE_ID_QUIET	(1U << 31)

enum vmtrace_reserve {
	VMTRACE_RESERVE_OFF,	/* no session: enable without a record */
	VMTRACE_RESERVE_FULL,	/* don't enable: the access faults again */
	VMTRACE_RESERVE_GO,
	VMTRACE_RESERVE_CHANGED, /* mappings were changed: lock the VMA */
	VMTRACE_RESERVE_FAR,	/* a number was taken: see admit.rs */
	VMTRACE_RESERVE_WORDLESS, /* the page table has no words */
	VMTRACE_RESERVE_KICK = 1 << 8,	/* besides: kvmtraced is to be woken */
};

/* The number of an admission, and what goes with it: tickets::Ticket. Rust's. */
struct vmtrace_ticket {
	u64 ordinal;
	u64 seq;
	u64 time;
	u64 clock;
	u32 nth;
	u16 cpu;
};

/* What a look at a page has found: vmtrace_look_at(). */
enum vmtrace_looked {
	VMTRACE_LOOKED_ACCESSED	= 1 << 0,
	VMTRACE_LOOKED_WRITTEN	= 1 << 1, /* likewise */
	VMTRACE_LOOKED_CPU	= 1 << 2, /* the CPU is known, see below */
	VMTRACE_LOOKED_FLUSH	= 1 << 3, /* aimed at: the page is to be flushed */
	VMTRACE_LOOKED_NOT	= 1 << 4, /* it is not known whether it was accessed */
};

#define VMTRACE_LOOKED_CPU_SHIFT	16

/* What a cleared PTE was. */
enum vmtrace_close {
	VMTRACE_CLOSE_FUNNY,	/* no member */
	VMTRACE_CLOSE_MEMBER,
	VMTRACE_CLOSE_YOUNG,	/* whose accessed bit the set has cleared */
};

/* What a PTE had. */
#define VMTRACE_PTE_YOUNG	1
#define VMTRACE_PTE_DIRTY	2

/* The bits of a PTE, for pte.rs. */
enum vmtrace_pte_bit {
	VMTRACE_PTE_BIT_PRESENT = _PAGE_BIT_PRESENT,
	VMTRACE_PTE_BIT_RW = _PAGE_BIT_RW,
	VMTRACE_PTE_BIT_USER = _PAGE_BIT_USER,
	VMTRACE_PTE_BIT_ACCESSED = _PAGE_BIT_ACCESSED,
	VMTRACE_PTE_BIT_DIRTY = _PAGE_BIT_DIRTY,
	VMTRACE_PTE_BIT_PSE = _PAGE_BIT_PSE,
	VMTRACE_PTE_BIT_PROTNONE = _PAGE_BIT_PROTNONE,
	VMTRACE_PTE_BIT_SPECIAL = _PAGE_BIT_SPECIAL,
	VMTRACE_PTE_BIT_UFFD = _PAGE_BIT_UFFD,
	VMTRACE_PTE_BIT_SOFT_DIRTY = _PAGE_BIT_SOFT_DIRTY,
	VMTRACE_PTE_BIT_SAVED_DIRTY = _PAGE_BIT_SAVED_DIRTY,
	VMTRACE_PTE_BIT_PKEY = _PAGE_BIT_PKEY_BIT0,
	VMTRACE_PTE_BIT_NX = _PAGE_BIT_NX,
};

/* What the kernel's functions say of a PTE, and of access with some PKRU: for a test. */
struct vmtrace_pte_facts {
	bool enabled;
	bool disabled;
	bool writable;
	bool executable;
	bool young;
	bool dirty;
	bool special;
	bool uffd;
	bool key_reads;
	bool key_writes;
	/* Not of the PTE, but of the processor. */
	bool has_shadow_stacks;
	u64 pfn;
	/* What it becomes. */
	u64 disable;
	u64 enable;
	u64 make_young;
	u64 make_old;
	u64 make_dirty;
	u64 make_clean;
};

void vmtrace_pte_facts(u64 pte, u32 pkru, struct vmtrace_pte_facts *f);

/* What is known when a page is enabled: stay::Admission. */
struct vmtrace_admission {
	struct mm_struct *mm;
	unsigned long entry;	/* its handle */
	u64 page;		/* address | VMTRACE_REF_* */
	u32 mm_id;
	u32 tid_cpu;
	u32 pfn;
	bool was_dirty;
	u64 vtime;		/* the task's virtual time, if it has one */
	unsigned long address;	/* of the access, as exactly as it is known */
};

/*
 * An access that found a disabled PTE. To admit its page, C sets a.mm, a.entry, a.tid_cpu,
 * a.vtime, a.address, and what is not Rust's. Rust sets VMTRACE_TOUCH_ADMITTED, too. To enable
 * the PTE without a record, C sets @flags, @ptep, @pte and @ptl.
 */
struct vmtrace_touch {
	struct vmtrace_admission a;
	pte_t *ptep;
	/*
	 * If neither the VMA nor mmap_lock is locked, the address of mmap_lock's count of
	 * its writers. @seq is what that was when nobody held it for writing. Otherwise NULL.
	 */
	const unsigned int *lock_seq;
	unsigned int seq;
	u32 epoch;		/* of this CPU */
	struct vmtrace_ticket ticket;	/* Rust's */
	u64 record;		/* Rust's: the sequence number of the record */
	const void *set;	/* Rust's: scopes::Scope */
	int answer;		/* Rust's: VMTRACE_RESERVE_* */
	u32 pkru;		/* only for vmtrace_rs_touch() */
	unsigned int flags;	/* FAULT_FLAG_*, VMTRACE_TOUCH_* */
	unsigned long mask;	/* of a huge page's address: only for these */
	pte_t pte;		/* what @ptep was */
	spinlock_t *ptl;	/* that of @ptep */
};

/*
 * vmtrace_touch.flags, none of FAULT_FLAG_*, of references that are looked at: a filter leaves
 * it out; its page was admitted.
 */
#define VMTRACE_TOUCH_LEFT	(1U << 31)
#define VMTRACE_TOUCH_ADMITTED	(1U << 30)

/* Off unless a trace has filters or counts. In a struct, so that Rust can look at it. */
struct vmtrace_look_key {
	struct static_key_false key;
};

extern struct vmtrace_look_key vmtrace_look_key;

/* What filters compare of a mapping, and what counts are kept for. */
struct vmtrace_place {
	const char *name;
	u64 dev;		/* of a file, or 0 */
	u64 ino;
	u32 kind;		/* VMTRACE_MAP_* */
};

/* An event: @payload follows the head, then @name, padded to 8 bytes. */
struct vmtrace_event_in {
	u16 type;
	u16 payload_len;
	u16 name_len;
	bool may_sleep;
	u32 flags;
	u32 tid;
	u32 tgid;
	u32 mm;
	u32 cpu;
	u64 vtime;
	const void *payload;
	const void *name;
};

/* A call of fallocate(): bytes of the file, from the first one on and before the second one. */
struct vmtrace_hole {
	s64 start;		/* what ends if it succeeds */
	s64 end;
	s64 from;		/* what of it has been logged */
	s64 to;
	s64 now_from;		/* what was dropped now */
	s64 now_to;
};

enum vmtrace_found {
	VMTRACE_FOUND_NOTHING,
	VMTRACE_FOUND_FUNNY,	/* accessible, and no member */
	VMTRACE_FOUND_DANGLING,	/* a member, and not accessible */
	VMTRACE_FOUND_ASTRAY,	/* a member of another frame or address space */
};

struct vmtrace_finding {
	u32 what;		/* enum vmtrace_found */
	u32 mm;
	u64 addr;
	u64 pte;
};

/* What an audit looked at and found. */
struct vmtrace_audit {
	u64 mms;
	u64 enabled;		/* accessible PTEs of them, and huge ones */
	u64 uncovered;		/* of these, write-through and the like */
	u64 leaves;		/* PMD and PUD leaves */
	u64 looked;		/* members whose PTE was looked at */
	u64 locked;		/* address spaces not looked at: locked for long */
	u32 tries;		/* of locking them, until now */
	u64 found[4];		/* by enum vmtrace_found */
	/* The set's own figures, as they were in a pause. */
	u64 size;
	u64 members;
	u64 first;
	u64 reserved;
	u64 wrong;		/* figures that contradict each other */
	u32 room;
	u32 listed;
	struct vmtrace_finding *list;
};

/*
 * Where a set lies, for debuggers and for the model that traces are held against. Each set
 * begins with this: see scopes::Scope. Cell, Claim and Counter of tickets.rs are the layouts.
 */
struct vmtrace_view {
	unsigned long counter;
	unsigned long cells;
	unsigned long nr_cells;
	unsigned long cell_size;
	unsigned long claims;
	unsigned long nr_claims;
	unsigned long claim_size;
	unsigned long seats;	/* two words for each claim */
	unsigned long ordinals;	/* the set's next ordinal, 0 if it is the counter's */
	unsigned long number;
};

/* A trace from boot, as the kernel command line asks for it. */
struct vmtrace_early {
	u64 size;		/* bytes to keep records in */
	u32 evms_size;
	u32 classes;
	bool refs;
};

/* Rust, called by C. */
int vmtrace_rs_touch(struct vmtrace_touch *t);
void vmtrace_rs_readmit(struct vmtrace_touch *t);
void vmtrace_rs_heal(struct vmtrace_touch *t);
bool vmtrace_rs_judge_maps(void);
bool vmtrace_rs_judge(const struct vmtrace_touch *t,
		      const struct vmtrace_place *place);
void vmtrace_rs_log_filter(u32 flags);
bool vmtrace_rs_counts(void);
void vmtrace_rs_count(const struct vmtrace_touch *t,
		      const struct vmtrace_place *place);
u64 vmtrace_rs_filter(struct mm_struct *mm, unsigned long addr, pte_t *ptep,
		      u64 pte, u32 nr, bool access_flags);
u64 vmtrace_rs_cleared(struct mm_struct *mm, unsigned long addr, pte_t *ptep,
		       u64 pte);
void vmtrace_rs_pte_switch(pte_t *ptep, struct mm_struct *mm,
			   unsigned long addr, bool disable);
bool vmtrace_rs_aged(struct mm_struct *mm, u64 addr, bool young,
		     unsigned long entry);
void vmtrace_rs_drop_logged(void);
bool vmtrace_rs_hidden(struct mm_struct *mm, u64 addr,
		       unsigned long entry);
int vmtrace_rs_audit(struct vmtrace_audit *a);
void vmtrace_rs_audit_exit(struct vmtrace_audit *a);
int vmtrace_rs_audit_pte(const struct mm_struct *mm, u64 addr, u32 pfn,
			 unsigned long entry);
void vmtrace_rs_uncovered(void);
void vmtrace_rs_mm(void);
u32 vmtrace_rs_enter(struct mm_struct *mm, u64 group);
void vmtrace_rs_leave(struct mm_struct *mm);
u32 vmtrace_rs_set_of(struct mm_struct *mm, u64 *group);
u64 vmtrace_rs_event(const struct vmtrace_event_in *e);
bool vmtrace_rs_try_event(const struct vmtrace_event_in *e, u64 *seq);
bool vmtrace_rs_has_room(u64 bytes);
int vmtrace_rs_make_room(u64 bytes);
void vmtrace_rs_ended(void);
int vmtrace_rs_throttle_snapshot(void);
void vmtrace_rs_throttle_other(void);
bool vmtrace_rs_ending(void);
void vmtrace_rs_joined(void);
bool vmtrace_rs_hole_made(struct vmtrace_hole *hole);
bool vmtrace_rs_hole_left(const struct vmtrace_hole *hole);
int vmtrace_rs_early(const struct vmtrace_early *e);
u32 vmtrace_rs_aim(pte_t *ptep, u32 by, bool young);
u32 vmtrace_rs_check(pte_t *ptep, u32 by, bool young);
void vmtrace_rs_area(void *areas, unsigned long start, unsigned long end);
void vmtrace_rs_found(void *sampler, struct mm_struct *mm, u32 id);

/* C, called by Rust. */
extern u32 vmtrace_classes;	/* VMTRACE_CLASS_* */
extern u32 vmtrace_sets;	/* VMTRACE_SETS_* */
/* Address spaces with smaller numbers are of earlier traces or windows. */
extern u32 vmtrace_first_id;

/* The stall limit of traces that ask for none, in jiffies; 0: none. */
extern unsigned long vmtrace_stall_limit;

/* Set 0 of the present trace; 0 without one. */
extern struct vmtrace_view vmtrace_view;

bool vmtrace_owns_tables(void);
unsigned long vmtrace_entry_of(const pte_t *ptep);
pte_t *vmtrace_entry_at(unsigned long entry);
bool vmtrace_entry_is_of(unsigned long entry, const struct mm_struct *mm);
unsigned int vmtrace_pse_shift(u64 pte);
void vmtrace_lock(spinlock_t *ptl);
void vmtrace_unlock(spinlock_t *ptl);
/* Pages that are flushed one by one. For more than some 33, x86 flushes all instead. */
#define VMTRACE_FLUSH_PAGES	32

void vmtrace_flush(struct mm_struct *mm, const unsigned long *pages,
		   unsigned int nr, unsigned long entry);
void vmtrace_flush_page(struct mm_struct *mm, unsigned long addr,
			unsigned int shift);
void vmtrace_dirty_frame(u64 pfn);
void vmtrace_resched(void);
bool vmtrace_killed(void);
unsigned int vmtrace_why(void);
bool vmtrace_is_attaching(const struct mm_struct *mm);
pte_t *vmtrace_trylock_entry(unsigned long entry, spinlock_t **ptlp);
pte_t *vmtrace_lock_entry(unsigned long entry, spinlock_t **ptlp);
u32 vmtrace_epoch_of(unsigned int cpu);
DECLARE_TRACEPOINT(vmtrace_ref);
void vmtrace_trace_ref(u64 seq, u32 mm, u64 page, u32 pfn);
u32 vmtrace_own_mm(void);
bool *vmtrace_congested_on(unsigned int cpu);
void vmtrace_owe(void);
void vmtrace_allow_kill(void);
void vmtrace_look_switch(bool on);
bool vmtrace_glob(const char *pattern, const char *name);
void vmtrace_log_filter(const void *payload, size_t len, u32 flags);
bool vmtrace_try_log_filter(const void *payload, size_t len);
void vmtrace_log_resize(u32 from, u32 to, u32 flags);
int vmtrace_checkpoint(u32 header_n, u32 n, u64 *seq);
bool vmtrace_is_paranoid(void);
bool vmtrace_may_know(void);
int vmtrace_set_scope(u32 scope, pid_t pid, int fd, const char *names);
void vmtrace_clear_scope(void);
void vmtrace_name_scope(char *name, size_t size);
bool vmtrace_task_in_scope(const struct task_struct *task);
int vmtrace_attach(bool refs, bool marks);
bool vmtrace_has_joined(void);
int vmtrace_attach_joined(void);
int vmtrace_begin_refs(void);
void vmtrace_audit_spaces(struct vmtrace_audit *a);
void vmtrace_report(struct vmtrace_audit *a, u32 what, u32 mm,
		    unsigned long addr, u64 pte);
void vmtrace_report_set(u64 wrong);
void vmtrace_detach(bool last);
void vmtrace_unhook(void);
void vmtrace_quiesce(void);
void vmtrace_spare(bool spare);
int vmtrace_clock_describe(struct vmtrace_header *h, u32 skip);
void vmtrace_clock_on(u32 skip);
void vmtrace_clock_off(void);
void vmtrace_ran_switch(void);
void vmtrace_ran_look(void);
void vmtrace_ran_begin(void);
void vmtrace_ran_end(void);
u64 vmtrace_ran_sum(void);
int vmtrace_look_begin(struct mm_struct *mm, bool disables);
void vmtrace_look_end(struct mm_struct *mm, const unsigned long *pages,
		      unsigned int nr, bool disables);
u32 vmtrace_look_at(struct mm_struct *mm, unsigned long addr, u32 by,
		    bool aims);
void vmtrace_look_areas(struct mm_struct *mm, void *areas);
void vmtrace_look_for_spaces(void *sampler);
void vmtrace_grab(struct mm_struct *mm);
void vmtrace_drop(struct mm_struct *mm);
bool vmtrace_has_users(const struct mm_struct *mm);
void vmtrace_log_region(u32 mm, const struct vmtrace_ev_region *region);

#endif /* _MM_VMTRACE_INTERNAL_H */
