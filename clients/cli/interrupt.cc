#include "clients/cli/interrupt.h"

#include <grpcpp/client_context.h>
#include <pthread.h>
#include <signal.h>

#include <thread>

#include "base/check.h"
#include "clients/cli/terminal.h"

namespace lssar::cli {
namespace {

std::mutex active_mutex;
Interrupt* active = nullptr;

sigset_t InterruptSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Ends the process by the signal itself, so that the parent (a shell loop) sees SIGINT.
void DieOfSignal() {
  RestoreTerminal();
  signal(SIGINT, SIG_DFL);
  const sigset_t signals = InterruptSignals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  raise(SIGINT);
}

void WaitForSignals() {
  const sigset_t signals = InterruptSignals();
  while (true) {
    int number = 0;
    if (sigwait(&signals, &number) != 0) continue;
    std::lock_guard lock(active_mutex);
    if (active == nullptr || active->Fired()) DieOfSignal();
    active->Fire();
  }
}

}  // namespace

void Interrupt::Start() {
  const sigset_t signals = InterruptSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread(WaitForSignals).detach();
}

Interrupt::Interrupt() {
  std::lock_guard lock(active_mutex);
  LSSAR_CHECK(active == nullptr);
  active = this;
}

Interrupt::~Interrupt() {
  std::lock_guard lock(active_mutex);
  active = nullptr;
}

bool Interrupt::Fired() const {
  std::lock_guard lock(mutex_);
  return fired_;
}

void Interrupt::Fire() {
  std::lock_guard lock(mutex_);
  fired_ = true;
  for (grpc::ClientContext* context : contexts_) context->TryCancel();
}

Interrupt::Watch::Watch(Interrupt* interrupt, grpc::ClientContext* context)
    : interrupt_(interrupt), context_(context) {
  std::lock_guard lock(interrupt->mutex_);
  interrupt->contexts_.insert(context);
  if (interrupt->fired_) context->TryCancel();
}

Interrupt::Watch::~Watch() {
  std::lock_guard lock(interrupt_->mutex_);
  interrupt_->contexts_.erase(context_);
}

}  // namespace lssar::cli
