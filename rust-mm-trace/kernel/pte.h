/* SPDX-License-Identifier: GPL-2.0 */
/* Between the C files of mm/vmtrace. */
#ifndef _MM_VMTRACE_PTE_H
#define _MM_VMTRACE_PTE_H

#include <linux/mm.h>
#include <linux/percpu-defs.h>
#include <linux/pgtable.h>
#include <linux/static_call_types.h>

#include "internal.h"

struct mm_walk;

/* Huge pages: huge.c */
#ifdef CONFIG_HUGETLB_PAGE
unsigned int vmtrace_huge_shift(pte_t pte);
spinlock_t *vmtrace_huge_lockptr(struct mm_struct *mm, pte_t *ptep,
				 unsigned long kind);
void vmtrace_unshare(struct mm_struct *mm);
int vmtrace_walk_huge(pte_t *ptep, unsigned long hmask, unsigned long addr,
		      unsigned long next, struct mm_walk *walk, bool disable);
#else
static inline unsigned int vmtrace_huge_shift(pte_t pte)
{
	return 0;
}

static inline spinlock_t *vmtrace_huge_lockptr(struct mm_struct *mm,
					       pte_t *ptep, unsigned long kind)
{
	return NULL;
}

static inline void vmtrace_unshare(struct mm_struct *mm) { }

static inline int vmtrace_walk_huge(pte_t *ptep, unsigned long hmask,
				    unsigned long addr, unsigned long next,
				    struct mm_walk *walk, bool disable)
{
	return 0;
}
#endif

/*
 * The size of what @pte maps, by log2; 0 if that is not covered. hugetlb's entries
 * come through the same primitives as PTEs. Their PSE bit is the PAT bit of a PTE,
 * whose mapping is not covered.
 */
static inline unsigned int vmtrace_pte_shift(pte_t pte)
{
	if (likely(!(native_pte_val(pte) & _PAGE_PSE)))
		return PAGE_SHIFT;
	return vmtrace_huge_shift(pte);
}

/*
 * Each page table in which a page was admitted has a page of words beside it, one for each of its
 * entries: see trait Words in tickets.rs. They are there for as long as the page table is, also
 * when the trace is over.
 *
 * The handle of an entry is the address of its word, or 0 if there is none yet. Page tables
 * are found without locks, so the pointer is read and set as a whole.
 */
static __always_inline unsigned long vmtrace_entry_in(const struct ptdesc *table,
						      const pte_t *ptep)
{
	unsigned long words = (unsigned long)READ_ONCE(table->pt_vmtrace);

	BUILD_BUG_ON(sizeof(u64) != sizeof(pte_t));
	return words ? words | offset_in_page(ptep) : 0;
}

static __always_inline unsigned long vmtrace_entry(const pte_t *ptep)
{
	return vmtrace_entry_in(virt_to_ptdesc(ptep), ptep);
}

/*
 * The page of a page table, or of words: virt_to_page() would look whether it belongs to
 * the kernel's image.
 */
static __always_inline struct page *vmtrace_page_of(unsigned long addr)
{
	return pfn_to_page((addr - PAGE_OFFSET) >> PAGE_SHIFT);
}

/* The entry that a handle is of. Its page table is there. */
static __always_inline pte_t *vmtrace_entry_pte(unsigned long entry)
{
	unsigned long table = page_private(vmtrace_page_of(entry));

	return (pte_t *)(table | (offset_in_page(entry) & ~VMTRACE_ENTRY_HUGE));
}

/* The number of an address space that has one. */
static inline u32 vmtrace_number(const struct mm_struct *mm)
{
	return READ_ONCE(mm->vmtrace_id) & ~VMTRACE_ID_QUIET;
}

void vmtrace_set_words(struct mm_struct *mm, pte_t *ptep, struct page *words);
bool vmtrace_mm_traced(const struct mm_struct *mm);
bool vmtrace_mm_refs(const struct mm_struct *mm);
void vmtrace_admit_entry(struct vm_fault *vmf, pte_t *huge, unsigned long kind);

/* Whole system: address spaces made from now on are traced. */
extern bool vmtrace_scope_all;

/* What is in scope is visited, or was: address spaces made for it are traced. */
extern bool vmtrace_visited;

/* The visit is to look again for what it has passed. */
extern bool vmtrace_again;

/* The switches of a CPU, which it counts by itself, without a lock. */
DECLARE_PER_CPU(u32, vmtrace_epoch);

/* VMTRACE_ID_QUIET while no references are recorded, or 0. */
extern u32 vmtrace_quiet;

/* References that are looked at: look.c */
void __vmtrace_slow __vmtrace_look_readmit(struct vmtrace_touch *t,
					   struct vm_area_struct *vma);
int __vmtrace_slow __vmtrace_look_touch(struct vmtrace_touch *t);
u32 vmtrace_map_kind(const struct vm_area_struct *vma);
const char *vmtrace_special_name(struct vm_area_struct *vma);

typedef void vmtrace_process_fn(struct task_struct *leader,
				struct mm_struct *mm, void *arg);

bool vmtrace_is_spared(const struct mm_struct *mm);
void vmtrace_visit_mms(u32 tree, vmtrace_process_fn *what, void *arg);
void vmtrace_visit_mms_later(vmtrace_process_fn *what, void *arg);
typedef void vmtrace_thread_fn(struct task_struct *task, struct mm_struct *mm,
			       u32 flags);
void vmtrace_visit_threads(struct task_struct *leader, struct mm_struct *mm,
			   vmtrace_thread_fn *what, u32 flags);

/* What is traced: roots.c */
extern u32 vmtrace_tree;
bool vmtrace_in_tree(const struct task_struct *task, u32 tree);
void vmtrace_find_roots(void);
bool vmtrace_has_roots(void);
void vmtrace_root_executed(void);
void vmtrace_root_made(struct task_struct *child);
void vmtrace_root_changed(struct task_struct *task);
void vmtrace_look_again(void);
void vmtrace_passed(struct task_struct *task);

bool vmtrace_read_lock(struct mm_struct *mm, u32 *tries);
int vmtrace_walk_test(unsigned long start, unsigned long end,
		      struct mm_walk *walk);
void vmtrace_wait_unused(void);

void vmtrace_trace_event(u64 seq, u32 mm, unsigned int type,
			 const void *payload, const char *name);
bool vmtrace_stack_incomplete(unsigned long vm_flags);
int vmtrace_attach_mm(struct mm_struct *mm, struct task_struct *leader,
		      bool killable, u32 era);
u64 vmtrace_snapshot_size(struct mm_struct *mm, struct task_struct *leader);
bool vmtrace_snapshot_mm(struct mm_struct *mm, struct task_struct *task,
			 u32 era);
int vmtrace_refs_mm(struct mm_struct *mm, bool killable);
void vmtrace_snapshot_task(struct task_struct *task, struct mm_struct *mm,
			   u32 flags);
void vmtrace_describe_process(struct task_struct *leader, struct mm_struct *mm,
			      bool tasks, u32 flags);

/* Checkpoints: hooks.c, checkpoint.c */
u64 vmtrace_new_generation(void);
bool vmtrace_has_unborn(void);
bool vmtrace_is_described(const struct mm_struct *mm);
void vmtrace_set_described(struct mm_struct *mm);
int vmtrace_describe_mm(struct mm_struct *mm, struct task_struct *leader,
			bool visits);
void vmtrace_mark(unsigned int type, u32 flags);
u32 vmtrace_this_era(void);
void vmtrace_new_ids(void);
void vmtrace_give_set(struct mm_struct *mm);

#endif /* _MM_VMTRACE_PTE_H */
