// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: delays, to look for races. A race is found
 * if another CPU comes by at the right moment. Most such moments are some
 * instructions long, between two locks. A delay at one of them makes it as long
 * as a fault, so that another CPU often comes by.
 *
 * Nothing depends on these delays but time: a trace with them must be as good as
 * one without.
 */
#include <linux/bits.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/hash.h>
#include <linux/init.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/printk.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>
#include <linux/vmtrace.h>

#include "internal.h"

/* Never turned off again: turning it on patches the kernel. */
struct vmtrace_late_key vmtrace_late_key = { .key = STATIC_KEY_FALSE_INIT };

static const char * const vmtrace_late_names[] = {
	[VMTRACE_LATE_FAULTING] = "faulting",
	[VMTRACE_LATE_FAULTED] = "faulted",
	[VMTRACE_LATE_RESERVED] = "reserved",
	[VMTRACE_LATE_EVICTING] = "evicting",
	[VMTRACE_LATE_FLUSHING] = "flushing",
	[VMTRACE_LATE_ADMITTING] = "admitting",
	[VMTRACE_LATE_ADMITTED] = "admitted",
	[VMTRACE_LATE_ABORTING] = "aborting",
	[VMTRACE_LATE_FILTERING] = "filtering",
	[VMTRACE_LATE_CLOSING] = "closing",
	[VMTRACE_LATE_CLOSED] = "closed",
	[VMTRACE_LATE_LOGGING] = "logging",
	[VMTRACE_LATE_LOGGED] = "logged",
	[VMTRACE_LATE_AUDITING] = "auditing",
	[VMTRACE_LATE_NUMBERED] = "numbered",
	[VMTRACE_LATE_COUNTING] = "counting",
	[VMTRACE_LATE_ATTACHING] = "attaching",
	[VMTRACE_LATE_ATTACHED] = "attached",
	[VMTRACE_LATE_DETACHING] = "detaching",
	[VMTRACE_LATE_OPENING] = "opening",
	[VMTRACE_LATE_NUMBERING] = "numbering",
	[VMTRACE_LATE_MADE] = "made",
	[VMTRACE_LATE_DESCRIBING] = "describing",
	[VMTRACE_LATE_RESIZING] = "resizing",
};

#define VMTRACE_LATE_ALL	GENMASK(VMTRACE_LATE_POINTS - 1, 0)
/* A delay without sleep is no longer, for preemption may be disabled. */
#define VMTRACE_LATE_US_MAX	1000

/* Of which the delays follow; the points that have some; the usual longest one. */
static unsigned long vmtrace_late_seed;
static unsigned long vmtrace_late_mask;
static unsigned int vmtrace_late_us;

/* How often each point was passed, on each CPU, since the seed was set. */
struct vmtrace_late_counts {
	u32 of[VMTRACE_LATE_POINTS];
	u32 admissions;
};
static DEFINE_PER_CPU(struct vmtrace_late_counts, vmtrace_late_counts);

/*
 * For a deliberate data race. If KCSAN does not report it, KCSAN's silence about the
 * tracer proves nothing. The counter is changed at a point of late.h, so that it costs
 * nothing while nothing is made slow. Not static, or the compiler leaves out what nobody
 * reads.
 */
unsigned long vmtrace_raced;

/*
 * The delay depends on the seed, the point, the CPU, and how often this CPU has
 * passed the point. So it is the same again where CPUs run the same again. Any context,
 * except that the points from VMTRACE_LATE_SLEEPS on sleep.
 */
void __vmtrace_late(enum vmtrace_late_point point)
{
	unsigned int us = READ_ONCE(vmtrace_late_us), mixed;
	u64 key;

	if (vmtrace_broken(VMTRACE_BREAK_RACE) && point == VMTRACE_LATE_FAULTING)
		vmtrace_raced++;
	key = this_cpu_inc_return(vmtrace_late_counts.of[point]) |
	      (u64)raw_smp_processor_id() << 32 | (u64)point << 48;
	if (!(READ_ONCE(vmtrace_late_mask) & BIT(point)))
		return;
	mixed = hash_64(hash_64(key, 64) ^ READ_ONCE(vmtrace_late_seed), 32);
	if (point >= VMTRACE_LATE_SLEEPS) {
		/* One of these comes by seldom. */
		fsleep(us * (320 + mixed % 320));
		return;
	}
	/* One of 64 is longer than several faults. */
	if (!(mixed & 63))
		us = min(us * 8, VMTRACE_LATE_US_MAX);
	udelay((mixed >> 6) % (us + 1));
}

/* Half of all admissions, chosen like the delays. */
bool __vmtrace_late_apart(void)
{
	const u64 key = this_cpu_inc_return(vmtrace_late_counts.admissions) |
			(u64)raw_smp_processor_id() << 32;

	return hash_64(hash_64(key, 64) ^ READ_ONCE(vmtrace_late_seed), 1);
}

static int vmtrace_late_set(unsigned long seed, unsigned long mask,
			    unsigned int us)
{
	static DEFINE_MUTEX(lock);
	int cpu;

	if (mask & ~VMTRACE_LATE_ALL || us > VMTRACE_LATE_US_MAX)
		return -EINVAL;
	guard(mutex)(&lock);
	WRITE_ONCE(vmtrace_late_mask, 0);
	WRITE_ONCE(vmtrace_late_seed, seed);
	WRITE_ONCE(vmtrace_late_us, us);
	for_each_possible_cpu(cpu)
		memset(per_cpu_ptr(&vmtrace_late_counts, cpu), 0,
		       sizeof(struct vmtrace_late_counts));
	WRITE_ONCE(vmtrace_late_mask, mask);
	static_branch_enable(&vmtrace_late_key.key);
	return 0;
}

static int vmtrace_late_parse(const char *text)
{
	unsigned long seed, mask;
	unsigned int us;

	if (sscanf(text, "%lu,%lx,%u", &seed, &mask, &us) != 3)
		return -EINVAL;
	return vmtrace_late_set(seed, mask, us);
}

/* SEED,MASK,US: MASK is hexadecimal and has a bit for each point. */
static int __init vmtrace_late_setup(char *str)
{
	if (vmtrace_late_parse(str))
		pr_err("vmtrace: vmtrace_late=%s is not understood\n", str);
	return 1;
}
__setup("vmtrace_late=", vmtrace_late_setup);

/* vmtrace_break=late. */
void __init vmtrace_late_break(void)
{
	vmtrace_late_set(0, BIT(VMTRACE_LATE_RESERVED) |
			    BIT(VMTRACE_LATE_ATTACHING), 31);
}

/* vmtrace_break=race: all points are passed, and none of them is slow. */
void __init vmtrace_late_race(void)
{
	vmtrace_late_set(0, 0, 0);
}

static int vmtrace_late_show(struct seq_file *m, void *unused)
{
	unsigned int point;
	int cpu;

	seq_printf(m, "%lu,%lx,%u\n", vmtrace_late_seed, vmtrace_late_mask,
		   vmtrace_late_us);
	for (point = 0; point < VMTRACE_LATE_POINTS; point++) {
		u64 n = 0;

		for_each_possible_cpu(cpu)
			n += READ_ONCE(per_cpu(vmtrace_late_counts,
					       cpu).of[point]);
		seq_printf(m, "%s %llu\n", vmtrace_late_names[point], n);
	}
	return 0;
}

static int vmtrace_late_open(struct inode *inode, struct file *file)
{
	return single_open(file, vmtrace_late_show, NULL);
}

static ssize_t vmtrace_late_write(struct file *file, const char __user *from,
				  size_t len, loff_t *at)
{
	char text[64] = "";
	int ret;

	if (len >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, len))
		return -EFAULT;
	ret = vmtrace_late_parse(text);
	return ret ?: len;
}

static const struct file_operations vmtrace_late_fops = {
	.owner		= THIS_MODULE,
	.open		= vmtrace_late_open,
	.read		= seq_read,
	.write		= vmtrace_late_write,
	.llseek		= seq_lseek,
	.release	= single_release,
};

void __init vmtrace_late_init(struct dentry *dir)
{
	debugfs_create_file("late", 0600, dir, NULL, &vmtrace_late_fops);
}
