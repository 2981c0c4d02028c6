// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: the audit. It looks at the invariant from
 * both sides: every accessible PTE of a traced address space is a member of the
 * set, and every member's PTE is accessible and leads where the set says.
 *
 * Programs run meanwhile, and still nothing is found that is not so. A page
 * becomes a member and its PTE accessible in one section under the PTE's lock,
 * and ceases to be both in another one: eviction disables the PTE under it, a
 * clearing closes the stay before whoever cleared the PTE drops it. So with that
 * lock held both are true or neither is. A page whose admission is on the way is
 * no member yet, and the victim of an admission is one until it is disabled. Two
 * things look like findings and are none; Rust sorts them out with that lock held:
 * faults enable pages without a record once the set is sealed, and what a trace
 * leaves in an address space is not its successor's.
 *
 * The figures of the set are compared while it is paused, so that no admission is
 * on the way. Accesses to disabled pages fault again meanwhile.
 *
 * mmap_lock is held for reading, so that attaching and detaching, which change
 * PTEs first and numbers then, are over or have not begun.
 */
#include <linux/debugfs.h>
#include <linux/hugetlb.h>
#include <linux/init.h>
#include <linux/kstrtox.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/pagewalk.h>
#include <linux/ratelimit.h>
#include <linux/sched/mm.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/vmtrace.h>

#include "internal.h"
#include "late.h"
#include "pte.h"

static const char * const vmtrace_found_names[] = {
	[VMTRACE_FOUND_NOTHING] = "nothing",
	[VMTRACE_FOUND_FUNNY] = "funny",
	[VMTRACE_FOUND_DANGLING] = "dangling",
	[VMTRACE_FOUND_ASTRAY] = "astray",
};

/* Note what was found. @a is valid, and its list has room for @a->room findings. */
void vmtrace_report(struct vmtrace_audit *a, u32 what, u32 mm,
		    unsigned long addr, u64 pte)
{
	if (what == VMTRACE_FOUND_NOTHING)
		return;
	a->found[what]++;
	if (a->listed < a->room)
		a->list[a->listed++] = (struct vmtrace_finding) {
			.what = what,
			.mm = mm,
			.addr = addr,
			.pte = pte,
		};
	pr_err_ratelimited("vmtrace: audit: %s: mm %u address %#lx PTE %#llx\n",
			   vmtrace_found_names[what], mm, addr, pte);
}

/* Figures of the set contradict each other. */
void vmtrace_report_set(u64 wrong)
{
	pr_err_ratelimited("vmtrace: audit: %llu figures of the set contradict each other\n",
			   wrong);
}

static u32 vmtrace_pfn(pte_t pte)
{
	return min_t(unsigned long, pte_pfn(pte), U32_MAX);
}

/* From the page tables to the set. The PTE's lock is held. */
static int vmtrace_audit_pte(pte_t *ptep, unsigned long addr,
			     unsigned long next, struct mm_walk *walk)
{
	struct vmtrace_audit *a = walk->private;
	pte_t pte = ptep_get(ptep);

	if (!vmtrace_pte_enabled(pte))
		return 0;
	a->enabled++;
	if (!vmtrace_pte_shift(pte))
		a->uncovered++;
	else
		vmtrace_report(a, vmtrace_rs_audit_pte(walk->mm, addr,
						       vmtrace_pfn(pte),
						       vmtrace_entry(ptep)),
			       vmtrace_number(walk->mm), addr, pte_val(pte));
	return 0;
}

/* The same for a huge page. */
static int vmtrace_audit_huge(pte_t *ptep, unsigned long hmask,
			      unsigned long addr, unsigned long next,
			      struct mm_walk *walk)
{
	spinlock_t *ptl = huge_pte_lock(hstate_vma(walk->vma), walk->mm, ptep);

	vmtrace_audit_pte(ptep, addr & hmask, next, walk);
	spin_unlock(ptl);
	return 0;
}

/* Leaves are counted, and left as they are. */
static int vmtrace_audit_pmd(pmd_t *pmdp, unsigned long addr,
			     unsigned long next, struct mm_walk *walk)
{
	pmd_t pmd = pmdp_get_lockless(pmdp);

	if (pmd_leaf(pmd)) {
		((struct vmtrace_audit *)walk->private)->leaves++;
		walk->action = ACTION_CONTINUE;
	}
	return 0;
}

static int vmtrace_audit_pud(pud_t *pudp, unsigned long addr,
			     unsigned long next, struct mm_walk *walk)
{
	if (pud_leaf(pudp_get(pudp))) {
		((struct vmtrace_audit *)walk->private)->leaves++;
		walk->action = ACTION_CONTINUE;
	}
	return 0;
}

static const struct mm_walk_ops vmtrace_audit_ops = {
	.pud_entry	= vmtrace_audit_pud,
	.pmd_entry	= vmtrace_audit_pmd,
	.pte_entry	= vmtrace_audit_pte,
	.hugetlb_entry	= vmtrace_audit_huge,
	.test_walk	= vmtrace_walk_test,
	.walk_lock	= PGWALK_RDLOCK,
};

/* mmap_lock is held. */
static void vmtrace_audit_mm(struct mm_struct *mm, struct vmtrace_audit *a)
{
	if (!vmtrace_mm_refs(mm))
		return;
	a->mms++;
	walk_page_range(mm, 0, TASK_SIZE_MAX, &vmtrace_audit_ops, a);
}

static void vmtrace_audit_process(struct task_struct *leader,
				  struct mm_struct *mm, void *arg)
{
	struct vmtrace_audit *a = arg;

	if (!vmtrace_mm_refs(mm))
		return;
	if (!vmtrace_read_lock(mm, &a->tries)) {
		a->locked++;
		return;
	}
	vmtrace_audit_mm(mm, a);
	mmap_read_unlock(mm);
}

/*
 * From the page tables to the set: all traced address spaces. @a is valid, no lock of the hooks is
 * held, and the context may sleep.
 */
void vmtrace_audit_spaces(struct vmtrace_audit *a)
{
	vmtrace_visit_mms(0, vmtrace_audit_process, a);
}

#ifdef CONFIG_VMTRACE_DEBUG

static bool vmtrace_audit_on __ro_after_init =
	IS_ENABLED(CONFIG_VMTRACE_DEBUG_AUDIT);

static int __init vmtrace_audit_setup(char *str)
{
	return !kstrtobool(str, &vmtrace_audit_on);
}
__setup("vmtrace_audit=", vmtrace_audit_setup);

/*
 * Whether address spaces are audited as they end. Without closing, that is
 * what keeps the set from members whose address space is gone.
 */
static bool vmtrace_audit_exits(void)
{
	return vmtrace_audit_on || vmtrace_broken(VMTRACE_BREAK_NOCLOSE);
}

/* mmap_lock is held for reading; no user is left. */
void __vmtrace_slow __vmtrace_mm_exit(struct mm_struct *mm)
{
	struct vmtrace_audit a = {};

	if (!vmtrace_audit_exits() || !vmtrace_mm_refs(mm))
		return;
	vmtrace_audit_mm(mm, &a);
	vmtrace_rs_audit_exit(&a);
}

#define VMTRACE_AUDIT_LISTED	16

static void vmtrace_audit_print(struct seq_file *m,
				const struct vmtrace_audit *a)
{
	u32 i;

	seq_printf(m, "spaces %llu\n", a->mms);
	seq_printf(m, "accessible %llu\n", a->enabled);
	seq_printf(m, "uncovered %llu\n", a->uncovered);
	seq_printf(m, "leaves %llu\n", a->leaves);
	seq_printf(m, "looked_at %llu\n", a->looked);
	seq_printf(m, "locked %llu\n", a->locked);
	seq_printf(m, "size %llu\n", a->size);
	seq_printf(m, "members %llu\n", a->members);
	seq_printf(m, "first_segment %llu\n", a->first);
	seq_printf(m, "second_segment %llu\n", a->members - a->first);
	seq_printf(m, "reserved %llu\n", a->reserved);
	seq_printf(m, "funny %llu\n", a->found[VMTRACE_FOUND_FUNNY]);
	seq_printf(m, "dangling %llu\n", a->found[VMTRACE_FOUND_DANGLING]);
	seq_printf(m, "astray %llu\n", a->found[VMTRACE_FOUND_ASTRAY]);
	seq_printf(m, "miscounted %llu\n", a->wrong);
	for (i = 0; i < a->listed; i++) {
		const struct vmtrace_finding *f = &a->list[i];

		seq_printf(m, "finding %s mm %u address %#llx pte %#llx\n",
			   vmtrace_found_names[f->what], f->mm, f->addr,
			   f->pte);
	}
}

static int vmtrace_audit_show(struct seq_file *m, void *unused)
{
	struct vmtrace_audit a = { .room = VMTRACE_AUDIT_LISTED };
	int ret;

	a.list = kcalloc(a.room, sizeof(*a.list), GFP_KERNEL);
	if (!a.list)
		return -ENOMEM;
	ret = vmtrace_rs_audit(&a);
	if (!ret)
		vmtrace_audit_print(m, &a);
	kfree(a.list);
	return ret;
}
DEFINE_SHOW_ATTRIBUTE(vmtrace_audit);

static int __init vmtrace_audit_init(void)
{
	struct dentry *dir = debugfs_create_dir("vmtrace", NULL);

	debugfs_create_file("audit", 0400, dir, NULL, &vmtrace_audit_fops);
	vmtrace_late_init(dir);
	return 0;
}
late_initcall(vmtrace_audit_init);

#endif /* CONFIG_VMTRACE_DEBUG */
