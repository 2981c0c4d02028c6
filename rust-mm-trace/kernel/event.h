/* SPDX-License-Identifier: GPL-2.0 */
/* Events, between the C files of mm/vmtrace. */
#ifndef _MM_VMTRACE_EVENT_H
#define _MM_VMTRACE_EVENT_H

#include <linux/fs.h>
#include <linux/kdev_t.h>
#include <linux/sched.h>

#include "internal.h"

u64 vmtrace_emit_for(struct task_struct *task, u32 mm, unsigned int type,
		     const void *payload, size_t len, const char *name,
		     bool may_sleep, u32 flags);

struct vmtrace_request;

void vmtrace_emit_request(const struct vmtrace_request *request,
			  unsigned int type, const void *payload, size_t len);

static inline void vmtrace_emit(u32 mm, unsigned int type, const void *payload,
				size_t len, const char *name, bool may_sleep,
				u32 flags)
{
	vmtrace_emit_for(current, mm, type, payload, len, name, may_sleep,
			 flags);
}

/* As stat() has it. */
static inline u64 vmtrace_dev(const struct inode *inode)
{
	return (u64)MAJOR(inode->i_sb->s_dev) << 20 |
	       MINOR(inode->i_sb->s_dev);
}

/* What has the pages: of a stacked file system, the file below. */
static inline struct inode *vmtrace_inode(const struct file *file)
{
	return d_real_inode(file->f_path.dentry);
}

static inline bool vmtrace_class(u32 class)
{
	return READ_ONCE(vmtrace_classes) & class;
}

#ifdef CONFIG_CGROUPS
void vmtrace_log_cgroup(struct task_struct *task, u32 mm, u32 flags);
#else
static inline void vmtrace_log_cgroup(struct task_struct *task, u32 mm,
				      u32 flags)
{
}
#endif

void vmtrace_snapshot_files(struct task_struct *task, struct mm_struct *mm,
			    u32 flags);
void vmtrace_log_set(struct mm_struct *mm, u32 set, u64 group, u32 flags);
void vmtrace_emit_maps(struct mm_struct *mm, u32 flags);

#endif /* _MM_VMTRACE_EVENT_H */
