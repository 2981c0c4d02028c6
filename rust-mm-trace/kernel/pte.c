// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: the C layer below the Rust side, which decides what
 * becomes of entries of page tables (admit.rs, stores.rs). Here are the walks that find
 * them, their locks, the words beside them, and the hooks' entry points.
 *
 * Lock order: mmap_lock or VMA lock -> page table lock -> the lock of a ring, of a CPU's
 * references or of its events (in Rust). VMA lock -> the lock of a CPU's counts (in Rust),
 * under which nothing is locked. Nobody waits for a page table lock with another
 * one held, or with the lock of a ring held: there, it is only trylocked.
 */
#include <linux/init.h>
#include <linux/kcsan-checks.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/preempt.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/vmtrace.h>
#include <asm/tlbflush.h>

#include "internal.h"
#include "late.h"
#include "pte.h"

DEFINE_STATIC_KEY_FALSE(vmtrace_key);
/* Never turned off again: PTEs that a trace leaves disabled must heal. */
DEFINE_STATIC_KEY_FALSE(vmtrace_used_key);

u32 vmtrace_first_id = 1;
u32 vmtrace_quiet;
struct vmtrace_view vmtrace_view;

DEFINE_PER_CPU(u32, vmtrace_epoch);

/*
 * The epoch of any CPU. It may change at any moment. To see it late does no harm:
 * a page that could go is renewed.
 *
 * Rarely called. The oracle looks at what it returns.
 */
noinline u32 vmtrace_epoch_of(unsigned int cpu)
{
	return cpu < nr_cpu_ids ? READ_ONCE(per_cpu(vmtrace_epoch, cpu)) : 0;
}

/* Protections taken away: negative controls. */
unsigned long vmtrace_break;

#ifdef CONFIG_VMTRACE_DEBUG
static int __init vmtrace_break_setup(char *str)
{
	static const char * const names[BITS_PER_LONG] = {
		[VMTRACE_BREAK_NOFLUSH] = "noflush",
		[VMTRACE_BREAK_NOACCESS] = "noaccess",
		[VMTRACE_BREAK_PMDMOVE] = "pmdmove",
		[VMTRACE_BREAK_NOFILTER] = "nofilter",
		[VMTRACE_BREAK_NOREFLUSH] = "noreflush",
		[VMTRACE_BREAK_NOCLOSE] = "noclose",
		[VMTRACE_BREAK_NOYOUNG] = "noyoung",
		[VMTRACE_BREAK_NODIRTY] = "nodirty",
		[VMTRACE_BREAK_NOUPGRADE] = "noupgrade",
		[VMTRACE_BREAK_NOADMIT] = "noadmit",
		[VMTRACE_BREAK_PMDLEAF] = "pmdleaf",
		[VMTRACE_BREAK_NOATTACH] = "noattach",
		[VMTRACE_BREAK_NOBLOCK] = "noblock",
		[VMTRACE_BREAK_NOAGAIN] = "noagain",
		[VMTRACE_BREAK_NOORDER] = "noorder",
		[VMTRACE_BREAK_NOCLOCK] = "noclock",
		[VMTRACE_BREAK_NOEXPIRE] = "noexpire",
		[VMTRACE_BREAK_NOTURNS] = "noturns",
		[VMTRACE_BREAK_PMDSHARE] = "pmdshare",
		[VMTRACE_BREAK_NOCOMPARE] = "nocompare",
		[VMTRACE_BREAK_NOSEQ] = "noseq",
		[VMTRACE_BREAK_NORIGHTS] = "norights",
		[VMTRACE_BREAK_NOKEYS] = "nokeys",
		[VMTRACE_BREAK_NOZAP] = "nozap",
		[VMTRACE_BREAK_NOWRITER] = "nowriter",
		[VMTRACE_BREAK_NOADVISE] = "noadvise",
		[VMTRACE_BREAK_ONESET] = "oneset",
		[VMTRACE_BREAK_NOBURY] = "nobury",
		[VMTRACE_BREAK_NOBIRTH] = "nobirth",
		[VMTRACE_BREAK_NODESCRIBE] = "nodescribe",
		[VMTRACE_BREAK_KEEPLEFT] = "keepleft",
		[VMTRACE_BREAK_NOSEAL] = "noseal",
		[VMTRACE_BREAK_NOSTAMP] = "nostamp",
		[VMTRACE_BREAK_NOFETCH] = "nofetch",
		[VMTRACE_BREAK_NOSAME] = "nosame",
		[VMTRACE_BREAK_NOLIVE] = "nolive",
		[VMTRACE_BREAK_LATE] = "late",
		[VMTRACE_BREAK_RACE] = "race",
	};
	char *name;
	int i;

	while ((name = strsep(&str, ",")) != NULL) {
		/* Some numbers have no name. match_string() ends at the first of these. */
		for (i = 0; i < ARRAY_SIZE(names); i++) {
			if (names[i] && !strcmp(names[i], name))
				break;
		}
		if (i == ARRAY_SIZE(names))
			pr_warn("vmtrace_break: unknown control %s\n", name);
		else
			vmtrace_break |= BIT(i);
	}
	if (vmtrace_broken(VMTRACE_BREAK_LATE))
		vmtrace_late_break();
	if (vmtrace_broken(VMTRACE_BREAK_RACE))
		vmtrace_late_race();
	return 1;
}
__setup("vmtrace_break=", vmtrace_break_setup);
#endif

bool vmtrace_mm_traced(const struct mm_struct *mm)
{
	return vmtrace_mm_id(mm);
}

/* The number of @mm, which is valid, in the present trace or window; 0: it is not traced. */
u32 vmtrace_mm_id(const struct mm_struct *mm)
{
	u32 id = vmtrace_number(mm);

	return id >= READ_ONCE(vmtrace_first_id) ? id : 0;
}

/* Whether references are recorded, too. */
bool vmtrace_mm_refs(const struct mm_struct *mm)
{
	/* The number of a quiet one is negative. */
	return (s32)READ_ONCE(mm->vmtrace_id) >=
	       (s32)READ_ONCE(vmtrace_first_id);
}

/* The handle of an entry, for Rust. Its page table is there. */
unsigned long vmtrace_entry_of(const pte_t *ptep)
{
	return vmtrace_entry(ptep);
}

/*
 * The size of what an entry with the PSE bit maps, by log2, for Rust; or 0. What it maps is not
 * freed meanwhile.
 */
unsigned int vmtrace_pse_shift(u64 pte)
{
	return vmtrace_huge_shift(native_make_pte(pte));
}

/* What to store at @ptep, and at those after it, instead of @pte. */
static pte_t vmtrace_filter(struct mm_struct *mm, unsigned long addr,
			    pte_t *ptep, pte_t pte, unsigned int nr,
			    bool access_flags)
{
	return __pte(vmtrace_rs_filter(mm, addr, ptep, pte_val(pte), nr,
				       access_flags));
}

/* set_ptes() of enabled PTEs in an address space with a number. */
void __vmtrace_slow __vmtrace_set_ptes(struct mm_struct *mm, unsigned long addr,
				       pte_t *ptep, pte_t pte, unsigned int nr)
{
	pte = vmtrace_filter(mm, addr, ptep, pte, nr, false);
	set_ptes_unfiltered(mm, addr, ptep, pte, nr);
}

/*
 * set_pte_range()'s set_ptes(). Faults map around themselves within one page
 * table, so the slot in that table gives the address of @vmf->pte.
 */
void __vmtrace_slow __vmtrace_set_range(struct vm_fault *vmf, pte_t pte,
					unsigned int nr)
{
	unsigned long slot = offset_in_page(vmf->pte) / sizeof(pte_t);

	set_ptes(vmf->vma->vm_mm, (vmf->address & PMD_MASK) + slot * PAGE_SIZE,
		 vmf->pte, pte, nr);
}

pte_t __vmtrace_slow __vmtrace_filter_access(struct mm_struct *mm,
					     unsigned long addr, pte_t *ptep,
					     pte_t pte)
{
	return vmtrace_filter(mm, addr, ptep, pte, 1, true);
}

/* ptep_get_and_clear(), and its like for a whole address space. */
pte_t __vmtrace_slow __vmtrace_get_and_clear(struct mm_struct *mm,
					     unsigned long addr, pte_t *ptep)
{
	pte_t pte = native_ptep_get_and_clear(ptep);

	page_table_check_pte_clear(mm, addr, pte);
	return __pte(vmtrace_rs_cleared(mm, addr, ptep, pte_val(pte)));
}

bool __vmtrace_slow __vmtrace_young(struct mm_struct *mm, unsigned long addr,
				    const pte_t *ptep, bool young)
{
	if (!vmtrace_mm_traced(mm) || vmtrace_broken(VMTRACE_BREAK_NOYOUNG))
		return young;
	return vmtrace_rs_aged(mm, addr, young, vmtrace_entry(ptep));
}

bool __vmtrace_slow __vmtrace_hidden(struct mm_struct *mm, unsigned long addr,
				     const pte_t *ptep)
{
	return vmtrace_mm_traced(mm) && !vmtrace_broken(VMTRACE_BREAK_NOYOUNG) &&
	       vmtrace_rs_hidden(mm, addr, vmtrace_entry(ptep));
}

void __vmtrace_slow __vmtrace_leaf(struct mm_struct *mm)
{
	if (vmtrace_mm_refs(mm))
		vmtrace_rs_uncovered();
}

bool __vmtrace_slow __vmtrace_no_pmd_leaf(struct mm_struct *mm)
{
	return vmtrace_mm_refs(mm) && !vmtrace_broken(VMTRACE_BREAK_PMDLEAF);
}

bool __vmtrace_slow __vmtrace_no_pmd_move(struct mm_struct *mm)
{
	return vmtrace_mm_refs(mm) && !vmtrace_broken(VMTRACE_BREAK_PMDMOVE);
}

/*
 * Give the page table of @ptep its words. The page table may be unlinked already. It is
 * freed only later, and its words with it.
 */
void vmtrace_set_words(struct mm_struct *mm, pte_t *ptep, struct page *words)
{
	struct ptdesc *table = virt_to_ptdesc(ptep);

	set_page_private(words, (unsigned long)ptep & PAGE_MASK);
	words->__folio_index = (unsigned long)mm;
	if (cmpxchg(&table->pt_vmtrace, NULL, page_address(words))) {
		set_page_private(words, 0);
		__free_page(words);
	}
}

/*
 * Huge pages of PUD size have been members. The lock of their page tables is that of the
 * address space, and whoever finds such a member by its number locks it: see
 * vmtrace_lock_entry().
 */
static bool vmtrace_had_puds;

/* An address space has come to its end: wait until nobody locks it for its members' sake. */
void vmtrace_wait_unused(void)
{
	if (READ_ONCE(vmtrace_had_puds))
		synchronize_rcu_expedited();
}

/* Whether one of the entries that @words are of is a member's. */
static bool vmtrace_has_member(const u64 *words)
{
	int i;

	for (i = 0; i < PTRS_PER_PTE; i++)
		if (READ_ONCE(words[i]) & VMTRACE_WORD_MEMBER)
			return true;
	return false;
}

/*
 * A page table is freed, and its words, too. No member is in it: whoever frees it has cleared
 * its PTEs, which ends their stays. If that was missed, the set leads to freed memory.
 */
void __vmtrace_free_words(struct ptdesc *table)
{
	u64 *words = table->pt_vmtrace;

	table->pt_vmtrace = NULL;
	if (IS_ENABLED(CONFIG_VMTRACE_DEBUG) &&
	    WARN_ONCE(vmtrace_has_member(words),
		      "vmtrace: a page table is freed with a member in it\n"))
		return;
	set_page_private(virt_to_page(words), 0);
	free_page((unsigned long)words);
}

/*
 * Whether the kernel can change page tables itself. As a paravirtualized guest of Xen it
 * cannot: they are mapped read-only, and hypercalls change them. For Rust.
 */
bool vmtrace_owns_tables(void)
{
	return !cpu_feature_enabled(X86_FEATURE_XENPV);
}

/* The size that an entry maps, by log2. */
static unsigned int vmtrace_entry_shift(unsigned long entry)
{
	if (likely(!(entry & VMTRACE_ENTRY_HUGE)))
		return PAGE_SHIFT;
	return entry & VMTRACE_ENTRY_PUD ? PUD_SHIFT : PMD_SHIFT;
}

/*
 * Flush pages of one address space whose entries Rust has changed, with the locks of their
 * page tables held. There are @nr of them; @pages has the first VMTRACE_FLUSH_PAGES. @entry
 * is that of one of them; a huge page is the only one.
 */
void vmtrace_flush(struct mm_struct *mm, const unsigned long *pages,
		   unsigned int nr, unsigned long entry)
{
	vmtrace_late(VMTRACE_LATE_FLUSHING);
	if (vmtrace_broken(VMTRACE_BREAK_NOFLUSH))
		return;
	if (unlikely(nr > VMTRACE_FLUSH_PAGES))
		flush_tlb_mm_range(mm, 0, TLB_FLUSH_ALL, PAGE_SHIFT, false);
	else if (unlikely(entry & VMTRACE_ENTRY_HUGE))
		vmtrace_flush_page(mm, *pages, vmtrace_entry_shift(entry));
	else
		flush_tlb_mm_pages(mm, pages, nr);
}

/*
 * Flush a page whose entry was cleared, and whose stay has ended. @mm is valid, and the context is
 * that of a primitive of page tables: the lock of the entry is held.
 */
void vmtrace_flush_page(struct mm_struct *mm, unsigned long addr,
			unsigned int shift)
{
	if (likely(shift == PAGE_SHIFT))
		flush_tlb_mm_pages(mm, &addr, 1);
	else
		flush_tlb_mm_range(mm, addr, addr + (1UL << shift), shift,
				   false);
}

/* Whether a PMD leads to a page table. Not pmd_bad(), which looks at more. */
static __always_inline bool vmtrace_pmd_table(pmd_t pmd)
{
	return (native_pmd_val(pmd) & (_PAGE_PRESENT | _PAGE_PSE)) == _PAGE_PRESENT;
}

/* The entry that a handle is of, for Rust. Its page table is there. */
pte_t *vmtrace_entry_at(unsigned long entry)
{
	return vmtrace_entry_pte(entry);
}

/* The address space that the page table of an entry belongs to, which is there. */
static struct mm_struct *vmtrace_entry_mm(unsigned long entry)
{
	return (struct mm_struct *)vmtrace_page_of(entry)->__folio_index;
}

/* Whether it is @mm, which is only compared, for Rust. The page table has words. */
bool vmtrace_entry_is_of(unsigned long entry, const struct mm_struct *mm)
{
	return vmtrace_entry_mm(entry) == mm;
}

/* The lock of the page table of an entry. */
static spinlock_t *vmtrace_entry_lockptr(unsigned long entry, pte_t *ptep)
{
	/* Page tables of PTEs have locks of their own: see Kconfig. */
	if (likely(!(entry & VMTRACE_ENTRY_HUGE)))
		return ptep_lockptr(NULL, ptep);
	return vmtrace_huge_lockptr(vmtrace_entry_mm(entry), ptep, entry);
}

/*
 * Lock the page table of an entry that was a member's in this same section, which keeps
 * grace periods of RCU from ending. So its page table is still there, whatever became of the
 * member: what is not in use any more is freed after a grace period. Whether it is still a
 * member's shows when it is locked.
 *
 * Neither its mmap_lock nor its VMA lock is held: one might have to wait long for
 * either.
 */
pte_t *vmtrace_lock_entry(unsigned long entry, spinlock_t **ptlp)
{
	pte_t *ptep = vmtrace_entry_pte(entry);

	vmtrace_late(VMTRACE_LATE_EVICTING);
	*ptlp = vmtrace_entry_lockptr(entry, ptep);
	spin_lock(*ptlp);
	return ptep;
}

/*
 * vmtrace_lock_entry() for the PTE of a member, without waiting: NULL if the lock is not
 * free. The caller has the lock of another page table. Whoever has that of the member's may
 * wait for the caller's, so nobody waits for it here.
 */
pte_t *vmtrace_trylock_entry(unsigned long entry, spinlock_t **ptlp)
{
	pte_t *ptep = vmtrace_entry_pte(entry);
	struct page *table = vmtrace_page_of((unsigned long)ptep);

	*ptlp = ptlock_ptr(page_ptdesc(table));
	return spin_trylock(*ptlp) ? ptep : NULL;
}

/*
 * For Rust: @ptl is the lock of a page table that cannot go, for it is that of a present
 * address space or of an entry that is held. vmtrace_unlock() is called by the same task.
 */
void vmtrace_lock(spinlock_t *ptl)
{
	spin_lock(ptl);
}

/* Held by this task, from vmtrace_lock(), vmtrace_lock_entry() or its like. */
void vmtrace_unlock(spinlock_t *ptl)
{
	spin_unlock(ptl);
}

/* For Rust, which may sleep. */
void vmtrace_resched(void)
{
	cond_resched();
}

/* Whether the present task is to end, so that it should not wait. In any context of a task. */
bool vmtrace_killed(void)
{
	return fatal_signal_pending(current);
}

/*
 * A frame that has a struct page was written to. An entry that maps it is locked, so the page is not
 * freed meanwhile.
 */
void vmtrace_dirty_frame(u64 pfn)
{
	struct folio *folio = page_folio(pfn_to_page(pfn));

	if (!folio_test_dirty(folio))
		folio_mark_dirty(folio);
}

/*
 * Fill in what this CPU and its task are. Preemption is disabled from here on to the end of
 * the admission.
 */
static __always_inline void vmtrace_touch_by(struct vmtrace_touch *t)
{
	BUILD_BUG_ON(CONFIG_NR_CPUS > 1ULL << (32 - VMTRACE_TID_BITS));
	t->a.tid_cpu = task_pid_nr(current) |
		       smp_processor_id() << VMTRACE_TID_BITS;
	t->a.vtime = current->vmtrace_vtime;
	t->epoch = this_cpu_read(vmtrace_epoch);
}

/* Admit the page of a fault whose VMA is locked; or heal it, if the trace is over. */
static void vmtrace_readmit(struct vmtrace_touch *t, struct vm_area_struct *vma)
{
	t->lock_seq = NULL;
	/* The fault maps such a page, and the processor then denies the fetch. */
	if (!(vma->vm_flags & VM_EXEC))
		t->flags &= ~FAULT_FLAG_INSTRUCTION;
	preempt_disable();
	vmtrace_touch_by(t);
	if (static_branch_unlikely(&vmtrace_look_key.key))
		__vmtrace_look_readmit(t, vma);
	else
		vmtrace_rs_readmit(t);
	preempt_enable();
}

/*
 * Find the entry of a fault, for pte_unmap(). False if there is no page table.
 * Whoever locks it and finds t->pte there, which is present, knows that the table
 * is in its place. A huge page's entry is known, and its table is kept by the caller.
 */
static bool vmtrace_map_entry(struct vm_fault *vmf, pte_t *huge,
			      unsigned long kind, struct vmtrace_touch *t)
{
	pmd_t pmd;

	if (unlikely(kind)) {
		rcu_read_lock();
		t->ptep = huge;
		t->ptl = vmtrace_huge_lockptr(t->a.mm, huge, kind);
	} else {
		t->ptep = pte_offset_map_rw_nolock(t->a.mm, vmf->pmd, t->a.address,
						   &pmd, &t->ptl);
		if (!t->ptep)
			return false;
	}
	t->pte = ptep_get_lockless(t->ptep);
	t->a.entry = vmtrace_entry(t->ptep);
	if (likely(t->a.entry))
		t->a.entry |= kind;
	return true;
}

/*
 * The same, and the page table has words. False also if there is no memory for them: then the
 * page is not enabled, and the access faults until there is.
 */
static bool vmtrace_map_words(struct vm_fault *vmf, pte_t *huge,
			      unsigned long kind, struct vmtrace_touch *t)
{
	struct page *words;

	if (!vmtrace_map_entry(vmf, huge, kind, t))
		return false;
	if (likely(t->a.entry || !vmtrace_pte_disabled(t->pte)))
		return true;
	pte_unmap(t->ptep);
	words = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!words)
		return false;
	if (!vmtrace_map_entry(vmf, huge, kind, t)) {
		__free_page(words);
		return false;
	}
	if (kind & VMTRACE_ENTRY_PUD)
		WRITE_ONCE(vmtrace_had_puds, true);
	vmtrace_set_words(t->a.mm, t->ptep, words);
	t->a.entry = vmtrace_entry(t->ptep) | kind;
	/*
	 * Without words, a drop of the page was not noted. So look at the PTE again. The
	 * number is taken after this.
	 */
	t->pte = ptep_get_lockless(t->ptep);
	return true;
}

/**
 * vmtrace_admit_entry - enable the page of a fault and make it a member
 * @vmf: a fault that succeeded; its VMA is still locked
 * @huge: the entry of a huge page, or NULL
 * @kind: what the handle of that entry has in its low bits, or 0
 *
 * Does nothing if the PTE was not disabled by the tracer, if another CPU changes the
 * PTE meanwhile, or if there is no room for one more record. In the last case the
 * access faults again, and waits before that fault takes a lock (vmtrace_throttle()).
 * So each admission is recorded exactly once. If the trace is over, the PTE is enabled
 * without a record.
 */
void vmtrace_admit_entry(struct vm_fault *vmf, pte_t *huge, unsigned long kind)
{
	struct vmtrace_touch t = {
		.a.mm = vmf->vma->vm_mm,
		.a.address = vmf->real_address,
		.flags = vmf->flags,
		.mask = ~((1UL << vmtrace_entry_shift(kind)) - 1),
	};

	if (!vmtrace_mm_refs(t.a.mm))
		return;

	vmtrace_late(VMTRACE_LATE_FAULTED);
	if (!vmtrace_map_words(vmf, huge, kind, &t))
		return;
	vmtrace_readmit(&t, vmf->vma);
	pte_unmap(t.ptep);
}

/* The same for a PTE. */
void vmtrace_admit(struct vm_fault *vmf)
{
	vmtrace_admit_entry(vmf, NULL, 0);
}

/*
 * Whether nobody holds mmap_lock for writing. After a task reads a sequence count,
 * KCSAN treats its next 1,000 accesses as atomic and watches none of them. An admission
 * is more than a reader, so undo that.
 */
static __always_inline bool vmtrace_unlocked(struct mm_struct *mm,
					     unsigned int *seq)
{
	bool unlocked = mmap_lock_speculate_try_begin(mm, seq);

	kcsan_atomic_next(0);
	return unlocked || vmtrace_broken(VMTRACE_BREAK_NOWRITER);
}

/*
 * Find the PTE of an address without locks. False if there is no page table. Reads words,
 * for the compiler copies a struct that is read once, as pgdp_get() reads it, by the stack.
 */
static __always_inline bool vmtrace_find_pte(struct vmtrace_touch *t)
{
	pgd_t *pgdp = pgd_offset(t->a.mm, t->a.address);
	p4d_t *p4dp, p4d;
	pud_t *pudp, pud;
	pmd_t *pmdp, pmd;
	pgd_t pgd;

	pgd = native_make_pgd(READ_ONCE(pgdp->pgd));
	if (pgd_none(pgd))
		return false;
	p4dp = p4d_offset_lockless(pgdp, pgd, t->a.address);
	p4d = native_make_p4d(READ_ONCE(p4dp->p4d));
	if (!p4d_present(p4d))
		return false;
	pudp = pud_offset_lockless(p4dp, p4d, t->a.address);
	pud = native_make_pud(READ_ONCE(pudp->pud));
	if (!pud_present(pud) || pud_leaf(pud))
		return false;
	pmdp = pmd_offset_lockless(pudp, pud, t->a.address);
	pmd = native_make_pmd(READ_ONCE(pmdp->pmd));
	if (!vmtrace_pmd_table(pmd))
		return false;
	t->ptl = pte_lockptr(t->a.mm, &pmd);
	t->ptep = pte_offset_kernel(&pmd, t->a.address);
	t->pte = native_make_pte(READ_ONCE(t->ptep->pte));
	t->a.entry = vmtrace_entry_in(page_ptdesc(pmd_page(pmd)), t->ptep);
	return true;
}

/*
 * Give words to the page table of an access. False if there is no page table, or no memory.
 *
 * The allocation may have slept, so the trace may be over. Then khugepaged may take a page
 * table of anonymous pages away: it sends an IPI to all CPUs and does not wait for a grace
 * period. Interrupts are disabled here, so the IPI waits, as it does for GUP-fast.
 */
static bool vmtrace_touch_words(struct mm_struct *mm, unsigned long addr)
{
	struct vmtrace_touch t = { .a.mm = mm, .a.address = addr };
	struct page *words = alloc_page(GFP_KERNEL | __GFP_ZERO);
	unsigned long flags;
	bool found;

	if (!words)
		return false;
	local_irq_save(flags);
	found = vmtrace_mm_refs(mm) && vmtrace_find_pte(&t);
	if (found)
		vmtrace_set_words(mm, t.ptep, words);
	local_irq_restore(flags);
	if (!found)
		__free_page(words);
	return found;
}

/* A page table had no words: give it some, and try again. */
static noinline bool vmtrace_touch_again(struct mm_struct *mm,
					 unsigned long addr,
					 unsigned int flags)
{
	return vmtrace_touch_words(mm, addr) &&
	       __vmtrace_touch(mm, addr, flags);
}

/**
 * __vmtrace_touch - a page fault, before its VMA is looked up
 * @mm: the address space, which is that of this task
 * @address: of user memory, or of the vsyscall page, whose PTE is never disabled
 * @flags: FAULT_FLAG_WRITE, _INSTRUCTION and _USER of the access
 *
 * A re-reference needs neither its VMA nor mmap_lock: its PTE shows enough, unless
 * references are looked at (look.c). Returns
 * true if the fault is done: the access comes again. Otherwise nothing was admitted,
 * and the usual path is to be taken. See Documentation/mm/vmtrace.rst.
 */
bool __vmtrace_touch(struct mm_struct *mm, unsigned long address,
		     unsigned int flags)
{
	struct vmtrace_touch t __uninitialized;
	int answer = VMTRACE_RESERVE_OFF;

	t.a.mm = mm;
	t.a.address = address;
	t.flags = flags;
	/* It keeps this page table, too: see admit.rs. */
	preempt_disable();
	if (vmtrace_mm_refs(mm) && vmtrace_unlocked(mm, &t.seq) &&
	    vmtrace_find_pte(&t)) {
		t.lock_seq = &mm->mm_lock_seq.sequence;
		t.pkru = read_pkru();
		vmtrace_touch_by(&t);
		if (static_branch_unlikely(&vmtrace_look_key.key))
			answer = __vmtrace_look_touch(&t);
		else
			answer = vmtrace_rs_touch(&t);
	}
	preempt_enable();
	if (likely(answer == VMTRACE_RESERVE_GO))
		return true;
	if (answer == VMTRACE_RESERVE_WORDLESS)
		return vmtrace_touch_again(mm, address, flags);
	return answer == VMTRACE_RESERVE_FULL;
}

/**
 * vmtrace_denies_fetch - whether a page denies a fetch for which it was not present
 * @mm: the address space, which is that of this task
 * @address: of user memory, or of the vsyscall page, whose PTE is never disabled
 *
 * The processor looks at the right to execute only of a page that is present. So it
 * reports nothing but that a page which the tracer has disabled is not present. The usual
 * path does not ask whether a VMA may be executed, and would admit the page for an
 * access that never happens. Without tracing, such a page stays untouched. Huge pages
 * are not looked at: the usual path records a read.
 */
bool vmtrace_denies_fetch(struct mm_struct *mm, unsigned long address)
{
	struct vmtrace_touch t = { .a.mm = mm, .a.address = address };
	unsigned long flags;
	bool denies;

	if (vmtrace_broken(VMTRACE_BREAK_NOFETCH))
		return false;
	/* Disabled interrupts keep the page table, see vmtrace_touch_words(). */
	local_irq_save(flags);
	denies = vmtrace_find_pte(&t) && vmtrace_pte_disabled(t.pte) &&
		 !pte_exec(t.pte);
	local_irq_restore(flags);
	return denies;
}

/**
 * vmtrace_fault - a fault found a PTE that this tracer disabled
 * @vmf: the fault; vmf->pte is mapped, vmf->orig_pte was read without its lock
 *
 * Returns true if nothing but enabling it is needed, and does it. In an address
 * space that is not traced (any more) that is all: what a trace leaves behind
 * heals on touch. In one whose references are not recorded, a policy that has disabled
 * the PTE notes the access.
 */
bool vmtrace_fault(struct vm_fault *vmf)
{
	struct vmtrace_touch t = {
		.a.mm = vmf->vma->vm_mm,
		.a.entry = vmtrace_entry(vmf->pte),
		.a.address = vmf->real_address,
		.flags = vmf->flags,
		.ptep = vmf->pte,
		.pte = vmf->orig_pte,
		.ptl = vmf->ptl,
	};
	const bool refs = vmtrace_mm_refs(t.a.mm);

	/* A policy without references is to know also of accesses that need more. */
	if (!refs)
		vmtrace_rs_heal(&t);
	if ((vmf->flags & (FAULT_FLAG_WRITE | FAULT_FLAG_UNSHARE)) &&
	    !pte_write(vmf->orig_pte))
		return false;

	if (!refs) {
		/* Done. */
	} else if (unlikely(!t.a.entry)) {
		/* vmtrace_admit(), at the end of this fault, allocates words and admits. */
	} else if (!(vmf->flags & FAULT_FLAG_NOREF)) {
		vmtrace_late(VMTRACE_LATE_FAULTING);
		vmtrace_readmit(&t, vmf->vma);
		/* The end of this fault has nothing left to admit. */
		vmf->flags |= FAULT_FLAG_NOREF;
	}
	pte_unmap(t.ptep);
	return true;
}
