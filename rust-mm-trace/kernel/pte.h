/* SPDX-License-Identifier: GPL-2.0 */
/* Between the C files of mm/vmtrace. */
#ifndef _MM_VMTRACE_PTE_H
#define _MM_VMTRACE_PTE_H

#include <linux/mm_types.h>

bool vmtrace_mm_traced(const struct mm_struct *mm);
void vmtrace_pte_switch(pte_t *ptep, struct mm_struct *mm, unsigned long addr,
			bool disable);
void vmtrace_pte_audit(pte_t *ptep, struct mm_struct *mm, unsigned long addr);

/* Whole system: address spaces made from now on are traced. */
extern bool vmtrace_scope_all;

/* Address spaces with smaller numbers are of earlier traces. */
extern u32 vmtrace_first_id;

unsigned int vmtrace_why(void);
void vmtrace_snapshot_mm(struct mm_struct *mm);
void vmtrace_snapshot_task(struct task_struct *task, struct mm_struct *mm);
void vmtrace_snapshot_mark(unsigned int type);
void vmtrace_new_ids(void);

#endif /* _MM_VMTRACE_PTE_H */
