// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: which range flush_tlb_mm_pages() names to those who flush
 * for a range instead of a list. Secondary TLBs are such, and a test can be one of them.
 */
#include <kunit/test.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched.h>
#include <asm/tlbflush.h>

struct vmtrace_secondary {
	struct mmu_notifier mn;
	unsigned long start, end;
	unsigned int calls;
};

static void vmtrace_secondary_flush(struct mmu_notifier *mn, struct mm_struct *mm,
				    unsigned long start, unsigned long end)
{
	struct vmtrace_secondary *s = container_of(mn, struct vmtrace_secondary, mn);

	s->start = start;
	s->end = end;
	s->calls++;
}

static const struct mmu_notifier_ops vmtrace_secondary_ops = {
	.arch_invalidate_secondary_tlbs = vmtrace_secondary_flush,
};

static void vmtrace_flush_names_a_range(struct kunit *test)
{
	static const struct {
		unsigned long pages[3];
		unsigned int nr;
	} cases[] = {
		{ { 5 * PAGE_SIZE }, 1 },
		{ { 7 * PAGE_SIZE, 5 * PAGE_SIZE }, 2 },
		/* Of three page tables, in any order. */
		{ { 2 * PMD_SIZE, 9 * PMD_SIZE + 3 * PAGE_SIZE, PMD_SIZE - PAGE_SIZE }, 3 },
	};
	struct vmtrace_secondary *s = kunit_kzalloc(test, sizeof(*s), GFP_KERNEL);
	unsigned int i, n;

	KUNIT_ASSERT_NOT_NULL(test, s);
	KUNIT_ASSERT_EQ(test, kunit_attach_mm(), 0);
	s->mn.ops = &vmtrace_secondary_ops;
	KUNIT_ASSERT_EQ(test, mmu_notifier_register(&s->mn, current->mm), 0);
	for (n = 0; n < ARRAY_SIZE(cases); n++) {
		unsigned long least = ULONG_MAX, most = 0;

		flush_tlb_mm_pages(current->mm, cases[n].pages, cases[n].nr);
		for (i = 0; i < cases[n].nr; i++) {
			least = min(least, cases[n].pages[i]);
			most = max(most, cases[n].pages[i]);
		}
		KUNIT_EXPECT_EQ(test, s->calls, n + 1);
		KUNIT_EXPECT_EQ(test, s->start, least);
		KUNIT_EXPECT_EQ(test, s->end, most + PAGE_SIZE);
	}
	mmu_notifier_unregister(&s->mn, current->mm);
}

static struct kunit_case vmtrace_flush_cases[] = {
	KUNIT_CASE(vmtrace_flush_names_a_range),
	{}
};

static struct kunit_suite vmtrace_flush_suite = {
	.name = "vmtrace_flush",
	.test_cases = vmtrace_flush_cases,
};
kunit_test_suite(vmtrace_flush_suite);
