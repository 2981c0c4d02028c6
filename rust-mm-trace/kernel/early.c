// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: from boot. vmtrace=early begins a trace of
 * all address spaces before there is one. Its records are kept until user space
 * hands over a file for them; a record that finds no room is counted as lost,
 * and no task waits.
 */
#include <linux/init.h>
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/printk.h>
#include <linux/sizes.h>
#include <linux/string.h>
#include <linux/vmtrace.h>

#include "internal.h"

static struct vmtrace_early vmtrace_early __initdata = {
	.evms_size = 512,
	.classes = VMTRACE_CLASSES_USUAL,
};
static bool vmtrace_early_wanted __initdata;

/* Names of classes, with a + between them. */
static int __init vmtrace_early_classes(char *list)
{
	/* In the order of VMTRACE_CLASS_*. */
	static const char * const names[] __initconst = {
		"file", "io", "shm", "gup", "swap", "frame", "switch",
	};
	char *name;
	int i;

	vmtrace_early.classes = 0;
	if (!strcmp(list, "none"))
		return 0;
	while ((name = strsep(&list, "+")) != NULL) {
		i = match_string(names, ARRAY_SIZE(names), name);
		if (i >= 0)
			vmtrace_early.classes |= BIT(i);
		else if (!strcmp(name, "usual"))
			vmtrace_early.classes |= VMTRACE_CLASSES_USUAL;
		else if (!strcmp(name, "all"))
			vmtrace_early.classes = VMTRACE_CLASSES;
		else
			return -EINVAL;
	}
	return 0;
}

static int __init vmtrace_early_option(char *option)
{
	char *value = strchr(option, '='), *end;

	if (!strcmp(option, "early")) {
		vmtrace_early_wanted = true;
		return 0;
	}
	if (!strcmp(option, "refs")) {
		vmtrace_early.refs = true;
		return 0;
	}
	if (!value || !value[1])
		return -EINVAL;
	*value++ = '\0';
	if (!strcmp(option, "classes"))
		return vmtrace_early_classes(value);
	if (!strcmp(option, "evms"))
		return kstrtou32(value, 0, &vmtrace_early.evms_size);
	if (strcmp(option, "size"))
		return -EINVAL;
	vmtrace_early.size = memparse(value, &end);
	return *end || !vmtrace_early.size ? -EINVAL : 0;
}

static int __init vmtrace_setup(char *str)
{
	char *option;

	while ((option = strsep(&str, ",")) != NULL) {
		if (vmtrace_early_option(option)) {
			pr_err("vmtrace: %s on the command line is not understood; nothing is traced\n",
			       option);
			vmtrace_early_wanted = false;
			return 1;
		}
	}
	return 1;
}
__setup("vmtrace=", vmtrace_setup);

/* After /dev/vmtrace is there, before the first process is. */
static int __init vmtrace_early_init(void)
{
	/* The remaining memory must suffice for a boot. */
	const u64 most = (u64)totalram_pages() << PAGE_SHIFT >> 2;
	int ret = -ENOMEM;

	if (!vmtrace_early_wanted)
		return 0;
	/* The references of a distribution's boot take more than 100 MB. */
	if (!vmtrace_early.size)
		vmtrace_early.size = vmtrace_early.refs ?
				     min_t(u64, most / 2, SZ_512M) : SZ_64M;
	if (!vmtrace_owns_tables())
		ret = -ENODEV;
	else if (vmtrace_early.size <= most)
		ret = vmtrace_rs_early(&vmtrace_early);
	if (ret)
		pr_err("vmtrace: no trace from boot (%d): size=%llu of at most %llu, evms=%u\n",
		       ret, vmtrace_early.size, most, vmtrace_early.evms_size);
	else
		pr_info("vmtrace: tracing from boot into %llu bytes\n",
			vmtrace_early.size);
	return 0;
}
late_initcall(vmtrace_early_init);
