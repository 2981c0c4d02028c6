/* SPDX-License-Identifier: GPL-2.0 */
/* The border between the C and the Rust of mm/vmtrace: plain values only. */
#ifndef _MM_VMTRACE_INTERNAL_H
#define _MM_VMTRACE_INTERNAL_H

#include <linux/mm_types.h>
#include <linux/types.h>
#include <uapi/linux/vmtrace.h>

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
 * A page to be disabled: a member of the set, or none if @mm is NULL. While it
 * is a member it has an enabled PTE, so its page table is in use and @entry leads
 * to it; what is not in use any more is freed after a grace period of RCU.
 */
struct vmtrace_victim {
	struct mm_struct *mm;
	unsigned long entry;	/* its handle */
	unsigned long addr;
	u64 ordinal;
	bool grabbed;		/* @mm is held with mmgrab() */
};

enum vmtrace_reserve {
	VMTRACE_RESERVE_OFF,	/* no session: enable without a record */
	VMTRACE_RESERVE_FULL,	/* don't enable: the access faults again */
	VMTRACE_RESERVE_GO,
	VMTRACE_RESERVE_HAND,	/* the clock's hand is at the victim */
	VMTRACE_RESERVE_AGAIN,	/* the hand went on: reserve again */
	VMTRACE_RESERVE_CHANGED, /* mappings were changed: lock the VMA */
	VMTRACE_RESERVE_FAR,	/* reserved: see vmtrace_rs_admit_locked() */
};

struct vmtrace_reservation {
	struct vmtrace_victim victim;	/* to be disabled */
	struct vmtrace_victim passed;	/* its accessed bit is to be cleared */
	u64 ordinal;
	u64 time;
};

/*
 * Pages of one page table that were disabled, if @mm is not NULL: the range of
 * addresses that has all of them, which must be flushed.
 */
struct vmtrace_batch {
	struct mm_struct *mm;
	unsigned long start;
	unsigned long end;
};

enum vmtrace_shrink {
	VMTRACE_SHRINK_DONE,
	VMTRACE_SHRINK_EVICT,	/* the victim is to be disabled first */
	VMTRACE_SHRINK_WAIT,	/* an admission is under way, or no room */
	VMTRACE_SHRINK_MORE,	/* call again */
	VMTRACE_SHRINK_REFUSED,
};

/* What a cleared PTE was. */
enum vmtrace_close {
	VMTRACE_CLOSE_FUNNY,	/* no member */
	VMTRACE_CLOSE_MEMBER,
	VMTRACE_CLOSE_YOUNG,	/* whose accessed bit the set has cleared */
};

/* What a PTE had. */
#define VMTRACE_PTE_YOUNG	1
#define VMTRACE_PTE_DIRTY	2

/* The bits of a PTE that pte_young() and pte_dirty() test, for Rust. */
enum vmtrace_pte_bit {
	VMTRACE_PTE_BIT_ACCESSED = _PAGE_BIT_ACCESSED,
	VMTRACE_PTE_BIT_DIRTY = _PAGE_BIT_DIRTY,
	VMTRACE_PTE_BIT_SAVED_DIRTY = _PAGE_BIT_SAVED_DIRTY,
};

/* vmtrace_rs_admit()'s answer if there is no record. */
#define VMTRACE_NO_SEQ	U64_MAX

/*
 * Where a stay ends, if not at the number of the admission that takes its place:
 * after all numbers that were given out.
 */
#define VMTRACE_END_NOW	U64_MAX

/* What is known when a page is enabled: evms::Admission, and its number. */
struct vmtrace_admission {
	struct mm_struct *mm;
	unsigned long entry;	/* its handle */
	u64 page;		/* address | VMTRACE_REF_* */
	u32 mm_id;
	u32 tid_cpu;
	u32 pfn;
	bool was_dirty;
	u64 vtime;		/* the task's virtual time, if it has one */
	u64 ordinal;
};

/*
 * An admission in one hold of the locks. C sets @a except its number, @ptep,
 * @lock_seq, @seq and @epoch. C sets @far and @disabled.mm to NULL.
 * vmtrace_rs_admit_locked() sets the rest.
 */
struct vmtrace_locked {
	struct vmtrace_admission a;
	pte_t *ptep;
	/*
	 * NULL, or the address of mmap_lock's count of writers, which must still be @seq
	 * after the number was taken.
	 */
	const unsigned int *lock_seq;
	unsigned int seq;
	u32 epoch;
	spinlock_t *far;	/* of another page table, if it was locked */
	struct vmtrace_reservation r;
	struct vmtrace_batch disabled;
	u64 record;		/* the sequence number of the record */
	int answer;		/* VMTRACE_RESERVE_* */
	bool full;		/* kvmtraced is to be woken */
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
	/* The set's own figures, as they were at one moment. */
	u64 size;
	u64 members;
	u64 first;
	u64 reserved;
	u64 wrong;		/* figures that contradict each other */
	u32 room;
	u32 listed;
	struct vmtrace_finding *list;
};

/* Members looked for: numbers from @at on, all below @end. */
struct vmtrace_cursor {
	u64 at;
	u64 end;
	u32 mm;			/* of this address space; 0: of any */
};

/* A trace from boot, as the kernel command line asks for it. */
struct vmtrace_early {
	u64 size;		/* bytes to keep records in */
	u32 evms_size;
	u32 classes;
	bool refs;
};

/* Rust, called by C. */
int vmtrace_rs_reserve(struct vmtrace_reservation *r, struct mm_struct *mm,
		       u32 epoch);
int vmtrace_rs_hand(struct vmtrace_reservation *r, struct mm_struct *mm,
		    pte_t *ptep, bool may, bool *flush, u32 epoch);
bool vmtrace_rs_sweep(u64 ordinal, pte_t *ptep);
bool vmtrace_rs_aged(u32 mm, u64 addr, bool young, unsigned long entry);
int vmtrace_rs_shrink(struct vmtrace_victim *victim, u64 n);
void vmtrace_rs_evict(u64 ordinal, pte_t *ptep, u32 why, u64 now, u64 end,
		      struct vmtrace_batch *disabled);
void vmtrace_rs_admit_locked(struct vmtrace_locked *l);
u64 vmtrace_rs_admit(const struct vmtrace_admission *a);
void vmtrace_rs_abort(u64 ordinal);
int vmtrace_rs_close(u32 mm, u64 addr, u32 last, u32 why, unsigned long entry);
void vmtrace_rs_dropped(u32 mm, u64 addr, unsigned long entry);
void vmtrace_rs_drop_logged(void);
void vmtrace_rs_funny(void);
bool vmtrace_rs_hidden(u32 mm, u64 addr, unsigned long entry);
bool vmtrace_rs_dirtied(u32 mm, u64 addr, unsigned long entry);
bool vmtrace_rs_member(u32 mm, u64 addr, unsigned long entry);
int vmtrace_rs_audit(struct vmtrace_audit *a);
void vmtrace_rs_audited(void);
void vmtrace_rs_unaudited(void);
int vmtrace_rs_audit_pte(const struct mm_struct *mm, u64 addr, u32 pfn,
			 unsigned long entry);
bool vmtrace_rs_audit_next(struct vmtrace_victim *v, struct vmtrace_cursor *c,
			   struct mm_struct *mm);
int vmtrace_rs_audit_member(const struct vmtrace_victim *v, u32 mm,
			    bool enabled, u32 pfn);
void vmtrace_rs_audit_set(struct vmtrace_audit *a);
void vmtrace_rs_uncovered(void);
void vmtrace_rs_waited(void);
/*
 * Who takes places of the set's reserve. The value is the part of the reserve that
 * may be taken: a half or a quarter. So tasks that the output needs find places
 * when system calls find none.
 */
enum vmtrace_spare {
	VMTRACE_SPARE_NEEDED = 2,
	VMTRACE_SPARE_CALLS = 4,
};

bool vmtrace_rs_spare(enum vmtrace_spare share);
void vmtrace_rs_stalled(void);
void vmtrace_rs_mm(void);
u64 vmtrace_rs_event(const struct vmtrace_event_in *e);
bool vmtrace_rs_has_room(u64 bytes);
bool vmtrace_rs_relieved(unsigned int cpu);
int vmtrace_rs_make_room(u64 bytes);
void vmtrace_rs_ended(void);
void vmtrace_rs_kick(void);
int vmtrace_rs_early(const struct vmtrace_early *e);

/* C, called by Rust. */
extern u32 vmtrace_classes;	/* VMTRACE_CLASS_* */
/* Address spaces with smaller numbers are of earlier traces or windows. */
extern u32 vmtrace_first_id;

u64 vmtrace_pte_take(pte_t *ptep, bool young);
pte_t *vmtrace_trylock_victim(struct mm_struct *mm, unsigned long entry,
			      struct vmtrace_locked *l);
void vmtrace_pte_sweep(pte_t *ptep, u32 *last);
u32 vmtrace_epoch_of(unsigned int cpu);
bool vmtrace_cpu_online(unsigned int cpu);
u64 vmtrace_memory(void);
void vmtrace_congest(unsigned int cpu);
void vmtrace_congest_all(void);
bool vmtrace_wait_to_log(void);
void vmtrace_relieve(void);
bool vmtrace_can_owe(void);
void vmtrace_owe(void);
void vmtrace_set_waits(bool wait);
void vmtrace_set_limit(u32 stall_ms);
void vmtrace_progressed(void);
u32 vmtrace_seen(void);
void vmtrace_changed(void);
int vmtrace_wait_change(u32 seen, u32 most);
int vmtrace_write_back(struct file *file, loff_t size);
void vmtrace_set_ending(bool ending);
bool vmtrace_ending(void);
void vmtrace_session_begins(void);
void vmtrace_session_ends(void);
void vmtrace_window_wait(u64 ns, bool full);
void vmtrace_window_full(bool full);
void vmtrace_evict_all(void);
int vmtrace_resize(u32 to);
void vmtrace_log_resize(u32 from, u32 to);
bool vmtrace_rs_next_member(struct vmtrace_victim *victim,
			    struct vmtrace_cursor *c);
bool vmtrace_rs_drain(const struct vmtrace_victim *v, struct vmtrace_cursor *c,
		      pte_t *table, u64 now);
int vmtrace_set_tree(u32 scope, pid_t pid);
int vmtrace_attach(bool refs);
int vmtrace_begin_refs(void);
void vmtrace_audit(struct vmtrace_audit *a);
void vmtrace_detach(bool last);
void vmtrace_unhook(void);
void vmtrace_quiesce(void);
u64 vmtrace_affordable(void);
void *vmtrace_alloc(size_t size);
void vmtrace_spare(bool spare);
void vmtrace_describe(struct vmtrace_header *h);
int vmtrace_clock_describe(struct vmtrace_header *h, u32 skip);
void vmtrace_clock_on(u32 skip);
void vmtrace_clock_off(void);

#endif /* _MM_VMTRACE_INTERNAL_H */
