// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: how much right somebody needs who controls a trace.
 */
#include <linux/capability.h>
#include <linux/init.h>
#include <linux/sched.h>
#include <linux/sysctl.h>

#include "internal.h"

/* 0: CAP_PERFMON is enough, 1: only CAP_SYS_ADMIN is. */
static int vmtrace_paranoid_level __read_mostly = 1;

static const struct ctl_table vmtrace_sysctls[] = {
	{
		.procname	= "vmtrace_paranoid",
		.data		= &vmtrace_paranoid_level,
		.maxlen		= sizeof(vmtrace_paranoid_level),
		.mode		= 0644,
		.proc_handler	= proc_dointvec_minmax,
		.extra1		= SYSCTL_ZERO,
		.extra2		= SYSCTL_ONE,
	},
};

static int __init vmtrace_sysctl_init(void)
{
	register_sysctl_init("vm", vmtrace_sysctls);
	return 0;
}
late_initcall(vmtrace_sysctl_init);

/* Whether CAP_PERFMON is too little for a trace: vm.vmtrace_paranoid. In any context. */
bool vmtrace_is_paranoid(void)
{
	return READ_ONCE(vmtrace_paranoid_level) > 0;
}

/*
 * Whether the caller may know what is traced. That is no use of a right, so it is no
 * denial to be logged either.
 */
bool vmtrace_may_know(void)
{
	return has_capability_noaudit(current, CAP_SYS_ADMIN) ||
	       (!vmtrace_is_paranoid() &&
		has_capability_noaudit(current, CAP_PERFMON));
}
