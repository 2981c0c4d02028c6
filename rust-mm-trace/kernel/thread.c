// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: kvmtraced, its wake-ups, and the file it
 * writes to.
 */
#include <linux/capability.h>
#include <linux/crc32.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/kthread.h>
#include <linux/random.h>
#include <linux/sched/signal.h>
#include <linux/timekeeping.h>
#include <linux/utsname.h>
#include <linux/vmtrace.h>
#include <linux/wait.h>

#include "internal.h"

bool vmtrace_congested;

static DECLARE_WAIT_QUEUE_HEAD(vmtrace_room);
static DECLARE_WAIT_QUEUE_HEAD(vmtrace_work);
static struct task_struct *vmtrace_task;
static bool vmtrace_kicked;

/*
 * Wait for room in the log; -EINTR if a fatal signal came first. Called before a fault takes a lock, and by events
 * under mmap_lock, which kvmtraced never takes.
 */
int __vmtrace_throttle(void)
{
	if (!current->mm || current == vmtrace_task ||
	    !vmtrace_mm_id(current->mm))
		return 0;
	vmtrace_rs_waited();
	vmtrace_kick();
	return wait_event_killable(vmtrace_room,
				   !READ_ONCE(vmtrace_congested)) ?
	       -EINTR : 0;
}

void vmtrace_set_congested(bool congested)
{
	WRITE_ONCE(vmtrace_congested, congested);
	if (!congested)
		wake_up_all(&vmtrace_room);
}

/* A sub-buffer is full. Not under the locks of the rings. */
void vmtrace_kick(void)
{
	WRITE_ONCE(vmtrace_kicked, true);
	wake_up(&vmtrace_work);
}

/* Wait for work. False when the thread is to end. */
bool vmtrace_drain_wait(void)
{
	/* The time-out is for partly filled buffers of a failed wake-up. */
	wait_event_idle_timeout(vmtrace_work, READ_ONCE(vmtrace_kicked) ||
				kthread_should_stop(), HZ / 10);
	WRITE_ONCE(vmtrace_kicked, false);
	return !kthread_should_stop();
}

static int vmtrace_thread(void *unused)
{
	vmtrace_rs_drain();
	return 0;
}

int vmtrace_drain_start(void)
{
	struct task_struct *task;

	task = kthread_run(vmtrace_thread, NULL, "kvmtraced");
	if (IS_ERR(task))
		return PTR_ERR(task);
	vmtrace_task = task;
	return 0;
}

void vmtrace_drain_stop(void)
{
	kthread_stop(vmtrace_task);
	vmtrace_task = NULL;
}

struct file *vmtrace_get_output(int fd, int *error)
{
	struct file *file = fget(fd);

	*error = 0;
	if (!file) {
		*error = -EBADF;
	} else if (!(file->f_mode & FMODE_WRITE) ||
		   !(file->f_mode & FMODE_CAN_WRITE)) {
		*error = -EBADF;
	} else if (!S_ISREG(file_inode(file)->i_mode) &&
		   !S_ISBLK(file_inode(file)->i_mode)) {
		*error = -EINVAL;
	} else {
		return file;
	}
	if (file)
		fput(file);
	return NULL;
}

void vmtrace_put_output(struct file *file)
{
	fput(file);
}

/* Write all of @buf. Returns 0 or an error; a short write is -ENOSPC. */
ssize_t vmtrace_write(struct file *file, const void *buf, size_t len,
		      loff_t *pos)
{
	ssize_t n;

	while (len) {
		n = kernel_write(file, buf, len, pos);
		if (n < 0)
			return n;
		if (!n)
			return -ENOSPC;
		buf += n;
		len -= n;
	}
	return 0;
}

int vmtrace_sync(struct file *file)
{
	return vfs_fsync(file, 0);
}

bool vmtrace_capable(void)
{
	return capable(CAP_SYS_ADMIN);
}

u32 vmtrace_crc(u32 crc, const void *buf, size_t len)
{
	return crc32c(crc, buf, len);
}

u32 vmtrace_nr_cpus(void)
{
	return nr_cpu_ids;
}

u32 vmtrace_cpu(void)
{
	return raw_smp_processor_id();
}

/* Fill in what C knows best. */
void vmtrace_describe(struct vmtrace_header *h)
{
	get_random_bytes(h->uuid, sizeof(h->uuid));
	h->start_time = ktime_get_mono_fast_ns();
	h->realtime_offset = ktime_get_real_ns() - h->start_time;
	h->nr_cpus = nr_cpu_ids;
	h->debug_break = vmtrace_break;
	strscpy_pad(h->release, init_utsname()->release);
	strscpy_pad(h->arch, init_utsname()->machine);
}
