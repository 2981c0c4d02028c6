// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: which processes a trace is of.
 *
 * A trace that is not of all processes is of trees. Each task of a tree has the number of
 * the trace, and passes it on to the tasks that it creates. So a tree is known even if its
 * root has gone.
 *
 * Either one process is the root, or processes are roots that are in a control group, or
 * whose names fit a pattern. Such a process becomes a root
 *
 *  - if it is there when the trace or a window begins;
 *  - when it executes a program, or is made in the group with an address space of its own:
 *    it is attached by vmtrace_join() before it runs on;
 *  - when it is moved into the group, or changes its name: the thread of the trace
 *    attaches it.
 *
 * A process that shares its address space with its creator, as after vfork(), becomes a root
 * when it executes a program. Its creator is not to be traced on its account.
 */
#include <linux/cgroup.h>
#include <linux/cleanup.h>
#include <linux/glob.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/vmtrace.h>

#include "event.h"
#include "internal.h"
#include "late.h"
#include "pte.h"

/*
 * The number of the trees that are traced, 0 if all is. It is even. The next number is that
 * of tasks that are not to be roots: who began the trace, and what it has forked since, until
 * they execute a program.
 */
u32 vmtrace_tree;

/* What makes a process a root: one of both. */
struct vmtrace_roots {
	struct cgroup *cgrp;
	char names[sizeof_field(struct vmtrace_config, comm)];
};

/* Of the present trace, or NULL. START and the end of a trace change it. */
static struct vmtrace_roots __rcu *vmtrace_roots;

/* Whether processes may become roots while the trace is on. */
bool vmtrace_has_roots(void)
{
	return rcu_access_pointer(vmtrace_roots);
}

#ifdef CONFIG_CGROUPS
static struct cgroup *vmtrace_get_group(int fd)
{
	return cgroup_get_from_fd(fd);
}

static void vmtrace_put_group(struct cgroup *cgrp)
{
	cgroup_put(cgrp);
}

static void vmtrace_group_path(struct cgroup *cgrp, char *path, size_t size)
{
	cgroup_path(cgrp, path, size);
}

/* A thread that has exited is not moved with the others. RCU. */
static bool vmtrace_in_group(struct task_struct *leader, struct cgroup *cgrp)
{
	struct task_struct *t;

	for_each_thread(leader, t)
		if (!(t->flags & PF_EXITING))
			return cgroup_is_descendant(task_dfl_cgroup(t), cgrp);
	return false;
}
#else
static struct cgroup *vmtrace_get_group(int fd)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static void vmtrace_put_group(struct cgroup *cgrp)
{
}

static void vmtrace_group_path(struct cgroup *cgrp, char *path, size_t size)
{
}

static bool vmtrace_in_group(struct task_struct *leader, struct cgroup *cgrp)
{
	return false;
}
#endif

/* The leader of a process has a name for its other threads, too. RCU. */
static bool vmtrace_fits(const struct vmtrace_roots *roots,
			 struct task_struct *leader)
{
	char comm[TASK_COMM_LEN];

	if (roots->cgrp)
		return vmtrace_in_group(leader, roots->cgrp);
	strscpy_pad(comm, leader->comm);
	return glob_match(roots->names, comm);
}

/* Whether the creator of a process uses its address space, and is not traced. RCU. */
static bool vmtrace_borrows_mm(struct task_struct *leader, u32 tree)
{
	struct task_struct *creator = rcu_dereference(leader->real_parent);
	struct mm_struct *mm = READ_ONCE(leader->mm);

	return mm && READ_ONCE(creator->mm) == mm &&
	       READ_ONCE(creator->vmtrace_tree) != tree;
}

/* tasklist_lock held. */
static void vmtrace_mark_process(struct task_struct *leader, u32 tree)
{
	struct task_struct *t;

	for_each_thread(leader, t)
		WRITE_ONCE(t->vmtrace_tree, tree);
}

/* Whether a process may become a root. */
static bool vmtrace_is_candidate(const struct task_struct *leader, u32 tree)
{
	u32 now = READ_ONCE(leader->vmtrace_tree);

	return !(leader->flags & PF_KTHREAD) && now != tree && now != tree + 1;
}

/*
 * Makes a process a root, if it has become one. The lock is taken for those only. Whoever
 * creates a task meanwhile either passes the number on, or the task is among the threads
 * that are marked, or it is a process of its own, which is looked at by itself: see
 * vmtrace_inherit() and vmtrace_root_made(). RCU.
 */
static bool vmtrace_try_root(const struct vmtrace_roots *roots,
			     struct task_struct *leader)
{
	u32 tree = READ_ONCE(vmtrace_tree);
	bool is_root;

	if (!vmtrace_is_candidate(leader, tree) ||
	    vmtrace_borrows_mm(leader, tree) || !vmtrace_fits(roots, leader))
		return false;
	read_lock(&tasklist_lock);
	is_root = vmtrace_is_candidate(leader, tree);
	if (is_root)
		vmtrace_mark_process(leader, tree);
	read_unlock(&tasklist_lock);
	return is_root;
}

/* Whether the process of @task has become a root by what has just happened to it. */
static bool vmtrace_new_root(struct task_struct *task)
{
	const struct vmtrace_roots *roots;

	if (!vmtrace_has_roots())
		return false;
	guard(rcu)();
	roots = rcu_dereference(vmtrace_roots);
	return roots && vmtrace_try_root(roots, task->group_leader);
}

/* The current task, which is its process's only one, has executed a program. */
void vmtrace_root_executed(void)
{
	if (!vmtrace_has_roots())
		return;
	/* It is not what has begun the trace any more. */
	if (READ_ONCE(current->vmtrace_tree) == READ_ONCE(vmtrace_tree) + 1)
		WRITE_ONCE(current->vmtrace_tree, 0);
	if (vmtrace_new_root(current))
		vmtrace_ran_switch();
}

/*
 * A process was made, with an address space of its own. It is in its control group only now,
 * so whoever has looked for roots before may have taken it for one of another group.
 */
void vmtrace_root_made(struct task_struct *child)
{
	vmtrace_new_root(child);
}

/* A process was moved into another control group, or has another name. */
void vmtrace_root_changed(struct task_struct *task)
{
	if (vmtrace_new_root(task))
		vmtrace_passed(task->group_leader);
}

/* Find the roots that there are. Hooks find those that come from here on. */
void vmtrace_find_roots(void)
{
	const struct vmtrace_roots *roots;
	struct task_struct *p;

	if (!vmtrace_has_roots())
		return;
	guard(rcu)();
	roots = rcu_dereference(vmtrace_roots);
	if (!roots)
		return;
	for_each_process(p)
		vmtrace_try_root(roots, p);
}

/*
 * A task that is to be traced uses an address space that is not, and nobody is about to
 * attach that. Have the visit repeated, or have the thread of the trace look.
 */
void vmtrace_look_again(void)
{
	/* Pairs with vmtrace_attach(): who sees this sees the mark of the task, too. */
	smp_store_release(&vmtrace_again, true);
	if (vmtrace_has_roots())
		vmtrace_rs_joined();
}

/*
 * For the thread of the trace: whether to call vmtrace_attach_joined(). Not before
 * vmtrace_attach(), which begins the era.
 */
bool vmtrace_has_joined(void)
{
	return READ_ONCE(vmtrace_again) && READ_ONCE(vmtrace_visited) &&
	       vmtrace_has_roots();
}

/* The trace that had these roots is over, or has not begun. The context may sleep. */
void vmtrace_clear_scope(void)
{
	struct vmtrace_roots *roots = rcu_replace_pointer(vmtrace_roots, NULL, true);

	if (!roots)
		return;
	synchronize_rcu_expedited();
	if (roots->cgrp)
		vmtrace_put_group(roots->cgrp);
	kfree(roots);
}

static int vmtrace_set_roots(u32 scope, int fd, const char *names)
{
	struct vmtrace_roots *roots;
	int ret;

	roots = kzalloc_obj(*roots);
	if (!roots)
		return -ENOMEM;
	if (scope == VMTRACE_SCOPE_CGROUP) {
		roots->cgrp = vmtrace_get_group(fd);
		if (IS_ERR(roots->cgrp)) {
			ret = PTR_ERR(roots->cgrp);
			kfree(roots);
			return ret;
		}
	}
	strscpy_pad(roots->names, names);
	read_lock(&tasklist_lock);
	vmtrace_mark_process(current->group_leader, vmtrace_tree + 1);
	read_unlock(&tasklist_lock);
	rcu_assign_pointer(vmtrace_roots, roots);
	return 0;
}

/* tasklist_lock held. */
static bool vmtrace_descends(struct task_struct *task, struct task_struct *root)
{
	for (; task != &init_task; task = task->real_parent)
		if (same_thread_group(task, root))
			return true;
	return false;
}

static int vmtrace_set_tree(pid_t pid)
{
	struct task_struct *root, *p;
	int ret = -ESRCH;

	rcu_read_lock();
	read_lock(&tasklist_lock);
	root = find_task_by_vpid(pid);
	if (root && ((root->flags & PF_KTHREAD) ||
		     same_thread_group(root, current))) {
		ret = -EINVAL;
	} else if (root) {
		for_each_process(p)
			if (vmtrace_descends(p, root))
				vmtrace_mark_process(p, vmtrace_tree);
		ret = 0;
	}
	read_unlock(&tasklist_lock);
	rcu_read_unlock();
	return ret;
}

/**
 * vmtrace_set_scope - say what is to be traced
 * @scope: VMTRACE_SCOPE_*
 * @pid: root of a tree, in the caller's pid namespace
 * @fd: directory of a control group
 * @names: pattern for names
 *
 * Returns 0, -ENOMEM, -ESRCH, -EINVAL (a kernel thread or the caller itself), -EBADF (no
 * control group) or -EOPNOTSUPP (no control groups). vmtrace_clear_scope() ends it.
 */
int vmtrace_set_scope(u32 scope, pid_t pid, int fd, const char *names)
{
	static u32 last;

	vmtrace_clear_scope();
	/* Of an earlier trace. */
	WRITE_ONCE(vmtrace_again, false);
	vmtrace_tree = 0;
	if (scope == VMTRACE_SCOPE_ALL)
		return 0;
	/* Never 0, nor that of a trace of which there can be tasks left. */
	last += 2;
	vmtrace_tree = last ?: (last = 2);
	if (scope == VMTRACE_SCOPE_TREE)
		return vmtrace_set_tree(pid);
	return vmtrace_set_roots(scope, fd, names);
}

/*
 * What to call the scope in the header: the path of the group, or the pattern. @name has room for
 * @size bytes, at least one.
 */
void vmtrace_name_scope(char *name, size_t size)
{
	const struct vmtrace_roots *roots;

	*name = '\0';
	guard(rcu)();
	roots = rcu_dereference(vmtrace_roots);
	if (!roots)
		return;
	if (roots->cgrp)
		vmtrace_group_path(roots->cgrp, name, size);
	else
		strscpy(name, roots->names, size);
}

/* The threads of a process are in the same tree. */
bool vmtrace_in_tree(const struct task_struct *task, u32 tree)
{
	return !tree || READ_ONCE(task->vmtrace_tree) == tree;
}

/*
 * Whether a task belongs to what is traced, even if it has left its address
 * space.
 */
bool vmtrace_task_in_scope(const struct task_struct *task)
{
	return !(task->flags & PF_KTHREAD) &&
	       vmtrace_in_tree(task, READ_ONCE(vmtrace_tree));
}
