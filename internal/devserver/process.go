// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// errRunning is returned by Start of a server that runs.
var errRunning = errors.New("server is already running")

// process is one run of a server's program. Its methods may be called from several goroutines.
type process struct {
	name string
	pid  int
	done chan struct{} // closed when the program has ended and was reaped

	mu      sync.Mutex
	unguard func() // ends the watch over a frozen process; nil while it is not frozen
}

// spec says what to run and how.
type spec struct {
	name    string
	path    string
	args    []string
	dir     string
	env     []string
	logPath string         // standard output and error are appended here
	user    *credential    // nil: the caller's own
	onDeath syscall.Signal // what the kernel sends when this process dies
}

// run starts the program and returns at once; done is closed when it ends.
func run(s spec) (*process, error) {
	log, err := os.OpenFile(s.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer log.Close() //nolint:errcheck // the child has its own descriptor

	cmd := exec.Command(s.path, s.args...)
	cmd.Dir, cmd.Env = s.dir, s.env
	cmd.Stdout, cmd.Stderr = log, log // files, so that nobody who reads our output waits for the server's end
	cmd.SysProcAttr = attributes(s.user, s.onDeath)

	p := &process{name: s.name, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The death signal follows the forking thread: this one must live as long as the server.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // how a server ended is in its log
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name, err)
	}
	return p, nil
}

// running tells whether the program has not ended yet.
func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// stop sends the signals one after another until the program has ended, giving each its time. The last wait ends
// with ctx: then everything is killed, and ctx's error returned.
func (p *process) stop(ctx context.Context, signals ...syscall.Signal) error {
	if !p.running() {
		return nil
	}
	p.resume()
	for i, sig := range signals {
		if err := syscall.Kill(p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal %s: %w", p.name, err)
		}
		patience := time.NewTimer(10 * time.Second)
		if i == len(signals)-1 {
			patience.Reset(time.Minute)
		}
		select {
		case <-p.done:
			patience.Stop()
			return nil
		case <-patience.C:
		case <-ctx.Done():
			p.kill()
			return fmt.Errorf("stop %s: %w", p.name, ctx.Err())
		}
	}
	p.kill()
	return nil
}

// kill ends the program and all its descendants with SIGKILL and waits until they are gone.
func (p *process) kill() {
	if !p.running() {
		return
	}
	family := append([]int{p.pid}, descendants(p.pid)...)
	for _, pid := range family {
		_ = syscall.Kill(pid, syscall.SIGKILL) // ESRCH: it ended by itself
	}
	<-p.done
	for _, pid := range family[1:] {
		for deadline := time.Now().Add(5 * time.Second); alive(pid) && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
	p.release()
}

// pause freezes the program and all its descendants. Should this process die meanwhile, a watcher kills them.
func (p *process) pause() error {
	if !p.running() {
		return fmt.Errorf("pause %s: not running", p.name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unguard != nil {
		return nil
	}
	// The program itself first: it cannot fork any more when its descendants are listed.
	if err := syscall.Kill(p.pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pause %s: %w", p.name, err)
	}
	family := append([]int{p.pid}, descendants(p.pid)...)
	var list strings.Builder
	for _, pid := range family {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // ESRCH: it ended by itself
		list.WriteString(" " + strconv.Itoa(pid))
	}
	unguard, err := onExit("kill -KILL" + list.String())
	if err != nil {
		for _, pid := range family {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		return fmt.Errorf("pause %s: %w", p.name, err)
	}
	p.unguard = unguard
	return nil
}

// resume lets a frozen program go on; on one that is not frozen it does nothing.
func (p *process) resume() {
	if !p.running() {
		return
	}
	p.mu.Lock()
	frozen := p.unguard != nil
	p.mu.Unlock()
	if frozen {
		for _, pid := range append(descendants(p.pid), p.pid) {
			_ = syscall.Kill(pid, syscall.SIGCONT) // ESRCH: it ended by itself
		}
	}
	p.release()
}

// release dismisses the watcher over a frozen process.
func (p *process) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unguard != nil {
		p.unguard()
		p.unguard = nil
	}
}

// onExit starts a shell that runs script when this process ends, however it ends. The returned function
// dismisses it without running the script and waits until it is gone.
func onExit(script string) (dismiss func(), err error) {
	cmd := exec.Command("/bin/sh", "-c", "read -r _ && exit 0\n"+script)
	cmd.Dir = "/"
	cmd.SysProcAttr = attributes(nil, 0)
	in, err := cmd.StdinPipe() // closed by the kernel when we end: read then fails
	if err != nil {
		return nil, fmt.Errorf("watch this process: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("watch this process: %w", err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		// A caller may forget the function below; the pipe must not be closed by the garbage collector for that.
		runtime.KeepAlive(in)
		close(done)
	}()
	return sync.OnceFunc(func() {
		_, _ = in.Write([]byte("dismissed\n")) // fails only if the shell is gone already
		_ = in.Close()
		<-done
	}), nil
}

// KillGroupOnExit has a process group killed when this process ends, however it ends: for children that themselves have
// children which the kernel's death signal would not reach. dismiss ends the watch; call it once the group is gone.
func KillGroupOnExit(pgid int) (dismiss func(), err error) {
	return onExit("kill -KILL -" + strconv.Itoa(pgid))
}

// alive tells whether a process exists and is not just waiting to be reaped.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}
