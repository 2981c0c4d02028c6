// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: what the kernel's own functions say of a PTE, for the
 * test that compares pte.rs with them.
 */
#include <linux/pgtable.h>
#include <linux/pkeys.h>
#include <linux/vmtrace.h>

#include "internal.h"

/* With all bits of the old one except those of the frame, which may be inverted. */
static u64 vmtrace_present(pte_t pte, pteval_t take, pteval_t give)
{
	const pteval_t old = pte_val(pte), new = (old & ~take) | give;

	return flip_protnone_guard(old, new, PTE_PFN_MASK);
}

/* What C says about the PTE @value, and what it makes of it: pte.rs must say the same. */
void vmtrace_pte_facts(u64 value, u32 pkru, struct vmtrace_pte_facts *f)
{
	const pte_t pte = __pte(value);
	const u16 key = pte_flags_pkey(pte_flags(pte));

	*f = (struct vmtrace_pte_facts) {
		.enabled	= vmtrace_pte_enabled(pte),
		.disabled	= vmtrace_pte_disabled(pte),
		.writable	= pte_write(pte),
		.executable	= pte_exec(pte),
		.young		= pte_young(pte),
		.dirty		= pte_dirty(pte),
		.special	= pte_special(pte),
		.uffd		= pte_uffd(pte),
		.key_reads	= __pkru_allows_read(pkru, key),
		.key_writes	= __pkru_allows_write(pkru, key),
		.has_shadow_stacks = cpu_feature_enabled(X86_FEATURE_SHSTK),
		.pfn		= pte_pfn(pte),
		.disable	= vmtrace_present(pte, _PAGE_PRESENT,
						  _PAGE_PROTNONE),
		.enable		= vmtrace_present(pte, _PAGE_PROTNONE,
						  _PAGE_PRESENT),
		.make_young	= pte_val(pte_mkyoung(pte)),
		.make_old	= pte_val(pte_mkold(pte)),
		.make_dirty	= pte_val(pte_mkdirty(pte)),
		.make_clean	= pte_val(pte_mkclean(pte)),
	};
}
