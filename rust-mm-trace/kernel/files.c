// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: events of files. Reads and writes by file
 * descriptor reach the page cache without page tables. Truncation, punching of
 * holes and deletion end the identity of pages, whichever task does it.
 *
 * Events that may wait for room do so after the caller has dropped what the
 * output could need: the freeze protection of a file system, its inode locks,
 * its transactions. Events that are logged with one of these held never wait.
 */
#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/falloc.h>
#include <linux/list.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/sched/task.h>
#include <linux/spinlock.h>
#include <linux/vmtrace.h>

#include "event.h"
#include "pte.h"

u32 vmtrace_classes;

static u32 vmtrace_file_kind(const struct inode *inode)
{
	switch (inode->i_mode & S_IFMT) {
	case S_IFREG:
		return VMTRACE_FILE_REGULAR;
	case S_IFDIR:
		return VMTRACE_FILE_DIRECTORY;
	case S_IFIFO:
		return VMTRACE_FILE_PIPE;
	case S_IFSOCK:
		return VMTRACE_FILE_SOCKET;
	case S_IFCHR:
		return VMTRACE_FILE_CHAR;
	case S_IFBLK:
		return VMTRACE_FILE_BLOCK;
	default:
		return VMTRACE_FILE_OTHER;
	}
}

static void vmtrace_emit_file(struct task_struct *task, u32 mm,
			      unsigned int type, struct file *file,
			      bool may_sleep, u32 flags)
{
	struct inode *inode = vmtrace_inode(file);
	struct vmtrace_ev_file f = {
		.dev = vmtrace_dev(inode),
		.ino = inode->i_ino,
		.length = i_size_read(inode),
		.generation = inode->i_generation,
		.kind = vmtrace_file_kind(inode),
	};
	struct name_snapshot snap;

	take_dentry_name_snapshot(&snap, file->f_path.dentry);
	f.name_len = strnlen(snap.name.name, VMTRACE_NAME_MAX);
	vmtrace_emit_for(task, mm, type, &f, sizeof(f), snap.name.name,
			 may_sleep, flags);
	release_dentry_name_snapshot(&snap);
}

void __vmtrace_slow __vmtrace_open(struct file *file, bool may_sleep)
{
	u32 mm = vmtrace_own_mm();

	if (!IS_ERR(file) && mm && vmtrace_class(VMTRACE_CLASS_FILE))
		vmtrace_emit_file(current, mm, VMTRACE_EV_OPEN, file,
				  may_sleep, 0);
}

/*
 * The last reference to @file is gone. The kernel's own files were not opened.
 */
void __vmtrace_slow __vmtrace_file_end(struct file *file)
{
	u32 mm = vmtrace_own_mm();

	if (mm && vmtrace_class(VMTRACE_CLASS_FILE) &&
	    !(file->f_mode & FMODE_NOACCOUNT))
		vmtrace_emit_file(current, mm, VMTRACE_EV_CLOSE, file, true, 0);
}

/*
 * The files that @task has open already. This waits for room, so nothing is
 * locked.
 */
void vmtrace_snapshot_files(struct task_struct *task, struct mm_struct *mm,
			    u32 flags)
{
	unsigned int fd = 0;
	struct file *file;

	if (!vmtrace_class(VMTRACE_CLASS_FILE))
		return;
	while ((file = fget_task_next(task, &fd))) {
		if (!vmtrace_rs_throttle_snapshot())
			vmtrace_emit_file(task, vmtrace_mm_id(mm),
					  VMTRACE_EV_OPEN, file, true, flags);
		fput(file);
		fd++;
	}
}

static void vmtrace_fill_io(struct vmtrace_ev_io *io, struct inode *inode,
			    u64 offset, u64 bytes)
{
	*io = (struct vmtrace_ev_io) {
		.dev = vmtrace_dev(inode),
		.ino = inode->i_ino,
		.offset = offset,
		.bytes = bytes,
		.generation = inode->i_generation,
		.kind = vmtrace_file_kind(inode),
	};
}

/* About pages that end, for every process that maps them. */
static void vmtrace_emit_end(unsigned int type, struct inode *inode,
			     u64 offset, u64 bytes)
{
	struct vmtrace_ev_io io;

	vmtrace_fill_io(&io, inode, offset, bytes);
	vmtrace_emit(vmtrace_own_mm(), type, &io, sizeof(io), NULL, false, 0);
	vmtrace_rs_drop_logged();
}

static void vmtrace_fill_rw(struct vmtrace_ev_io *io, unsigned int call,
			    struct file *file, loff_t end, ssize_t bytes)
{
	struct inode *inode = vmtrace_inode(file);

	if (!S_ISREG(inode->i_mode) && !S_ISBLK(inode->i_mode))
		end = bytes;
	vmtrace_fill_io(io, inode, end - bytes, bytes);
	io->call = call;
	io->flags = file->f_flags & O_DIRECT ? VMTRACE_IO_DIRECT : 0;
}

static void vmtrace_rw(unsigned int type, unsigned int call, struct file *file,
		       loff_t end, ssize_t bytes, bool may_sleep)
{
	u32 mm = vmtrace_own_mm();
	struct vmtrace_ev_io io;

	if (bytes <= 0 || !mm || !vmtrace_class(VMTRACE_CLASS_IO))
		return;
	vmtrace_fill_rw(&io, call, file, end, bytes);
	vmtrace_emit(mm, type, &io, sizeof(io), NULL, may_sleep, 0);
}

/* Keep whose request this is until it is done. */
void __vmtrace_slow __vmtrace_request(struct vmtrace_request *request)
{
	if (!vmtrace_class(VMTRACE_CLASS_IO))
		return;
	request->mm = vmtrace_own_mm();
	request->tid = task_pid_nr(current);
	request->tgid = task_tgid_nr(current);
}

/**
 * vmtrace_request_end - bytes were read or written for a task
 * @request: whose
 * @write: they were written
 * @file: where
 * @end: position after them
 * @bytes: how many, above 0
 */
void vmtrace_request_end(struct vmtrace_request *request, bool write,
			 struct file *file, loff_t end, ssize_t bytes)
{
	struct vmtrace_ev_io io;

	vmtrace_fill_rw(&io, VMTRACE_CALL_AIO, file, end, bytes);
	vmtrace_emit_request(request,
			     write ? VMTRACE_EV_WRITE : VMTRACE_EV_READ, &io,
			     sizeof(io));
}

/**
 * __vmtrace_read - bytes were read
 * @call: VMTRACE_CALL_*
 * @file: where
 * @end: position after them
 * @bytes: how many; if negative, an error
 * @may_sleep: no lock is held that the output could need
 */
void __vmtrace_slow __vmtrace_read(unsigned int call, struct file *file,
				   loff_t end, ssize_t bytes, bool may_sleep)
{
	vmtrace_rw(VMTRACE_EV_READ, call, file, end, bytes, may_sleep);
}

/* The same for bytes that were written. */
void __vmtrace_slow __vmtrace_write(unsigned int call, struct file *file,
				    loff_t end, ssize_t bytes, bool may_sleep)
{
	vmtrace_rw(VMTRACE_EV_WRITE, call, file, end, bytes, may_sleep);
}

/*
 * Pages of a file end, for every process that maps the file. Under the inode's
 * lock, and maybe in a transaction.
 */
static void vmtrace_truncated(struct inode *inode, loff_t length)
{
	if (S_ISREG(inode->i_mode))
		vmtrace_emit_end(VMTRACE_EV_TRUNCATE, inode, length, 0);
}

void __vmtrace_slow __vmtrace_setattr_begin(unsigned int ia_valid)
{
	if (ia_valid & ATTR_SIZE)
		__vmtrace_why_begin(VMTRACE_WHY_TRUNCATED);
}

void __vmtrace_slow __vmtrace_setattr_end(struct inode *inode,
					  const struct iattr *attr,
					  unsigned int ia_valid, int error)
{
	if (!(ia_valid & ATTR_SIZE))
		return;
	__vmtrace_why_end();
	if (!error && vmtrace_enabled())
		vmtrace_truncated(inode, attr->ia_size);
}

static bool vmtrace_is_hugetlbfs(const struct inode *inode)
{
	return inode->i_sb->s_magic == HUGETLBFS_MAGIC;
}

/*
 * The calls of fallocate() that go on. What is dropped meanwhile of the file is
 * logged when it has been dropped, with the file system's lock against faults
 * still held: until then references are to what is dropped, and later ones to
 * what takes its place. When the call has ended it would be too late.
 */
static LIST_HEAD(vmtrace_changes);
static DEFINE_SPINLOCK(vmtrace_changes_lock);

void __vmtrace_slow
__vmtrace_fallocate_begin(struct vmtrace_fallocate *change, struct inode *inode,
			  int mode, loff_t offset, loff_t len)
{
	if (!S_ISREG(inode->i_mode))
		return;
	*change = (struct vmtrace_fallocate) {
		.inode = inode,
		.task = current,
		.mode = mode,
		.start = offset,
	};
	/* All that lies behind gets other offsets. */
	if (mode & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE))
		change->end = LLONG_MAX;
	else if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE |
			 FALLOC_FL_WRITE_ZEROES))
		change->end = offset + len;
	else
		change->end = offset;
	__vmtrace_why_begin(VMTRACE_WHY_TRUNCATED);
	spin_lock(&vmtrace_changes_lock);
	list_add(&change->list, &vmtrace_changes);
	spin_unlock(&vmtrace_changes_lock);
}

static struct vmtrace_hole vmtrace_hole(const struct vmtrace_fallocate *change)
{
	return (struct vmtrace_hole) {
		.start = change->start,
		.end = change->end,
		.from = change->from,
		.to = change->to,
	};
}

void __vmtrace_slow __vmtrace_dropped(struct inode *inode, loff_t start,
				      loff_t end)
{
	struct vmtrace_fallocate *change = NULL, *c;
	struct vmtrace_hole hole;

	spin_lock(&vmtrace_changes_lock);
	list_for_each_entry(c, &vmtrace_changes, list) {
		if (c->inode == inode && c->task == current) {
			change = c;
			break;
		}
	}
	spin_unlock(&vmtrace_changes_lock);
	/* This task's own, so it stays. Truncation has an event of its own. */
	if (!change)
		return;

	hole = vmtrace_hole(change);
	hole.now_from = start;
	hole.now_to = end;
	if (!vmtrace_rs_hole_made(&hole))
		return;
	vmtrace_emit_end(VMTRACE_EV_PUNCH, inode, hole.now_from,
			 hole.now_to - hole.now_from);
	change->from = hole.from;
	change->to = hole.to;
}

void __vmtrace_slow __vmtrace_fallocate_end(struct vmtrace_fallocate *change,
					    int ret)
{
	const struct vmtrace_hole hole = vmtrace_hole(change);
	const int mode = change->mode;

	spin_lock(&vmtrace_changes_lock);
	list_del(&change->list);
	spin_unlock(&vmtrace_changes_lock);
	__vmtrace_why_end();
	if (ret || !vmtrace_enabled())
		return;
	/* Maybe longer than before: what is new holds nothing. */
	if (!(mode & (FALLOC_FL_MODE_MASK | FALLOC_FL_KEEP_SIZE)))
		vmtrace_truncated(change->inode, i_size_read(change->inode));
	/* Each page that hugetlbfs drops is logged as it goes. */
	if (vmtrace_is_hugetlbfs(change->inode))
		return;
	/* Whole pages that the file system has dropped in a way of its own. */
	if (vmtrace_rs_hole_left(&hole))
		vmtrace_emit_end(VMTRACE_EV_PUNCH, change->inode, change->start,
				 change->end - change->start);
}

/* The last user of @inode is gone; with no link left, it is deleted. */
void __vmtrace_slow __vmtrace_inode_end(struct inode *inode)
{
	if (S_ISREG(inode->i_mode) && !inode->i_nlink)
		vmtrace_emit_end(VMTRACE_EV_DELETE, inode, 0,
				 i_size_read(inode));
}

/* System V shared memory: @type is VMTRACE_EV_SHM*. */
void __vmtrace_slow __vmtrace_shm(unsigned int type, struct file *file, int id,
				  unsigned long start, unsigned long len)
{
	struct inode *inode = file_inode(file);
	struct vmtrace_ev_shm s = {
		.start = start,
		.end = start + PAGE_ALIGN(len),
		.dev = vmtrace_dev(inode),
		.ino = inode->i_ino,
		.shmid = id,
		.generation = inode->i_generation,
	};
	u32 mm = vmtrace_own_mm();

	/* The end of a segment concerns every process. */
	if ((mm || type == VMTRACE_EV_SHM_DESTROY) &&
	    vmtrace_class(VMTRACE_CLASS_SHM))
		vmtrace_emit(mm, type, &s, sizeof(s), NULL, false, 0);
}
