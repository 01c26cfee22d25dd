// Ctrl-C as a cancelled call instead of a dead process.
#ifndef LSSAR_CLIENTS_CLI_INTERRUPT_H_
#define LSSAR_CLIENTS_CLI_INTERRUPT_H_

#include <grpcpp/client_context.h>

#include <mutex>
#include <set>

namespace lssar::cli {

// While one lives, SIGINT cancels the calls it watches; a second SIGINT, or one while none lives,
// ends the process as usual.
class Interrupt {
 public:
  // Gives SIGINT to a thread of its own. Requires  called in main before any other thread starts
  static void Start();

  // Requires  no other one lives
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool Fired() const;

  // Cancels what is watched, as the first SIGINT does. Threads  any
  void Fire();

  // Watches `context` from construction to destruction; one made after Fire is cancelled at once.
  class Watch {
   public:
    Watch(Interrupt* interrupt, grpc::ClientContext* context);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Interrupt* interrupt_;
    grpc::ClientContext* context_;
  };

 private:
  mutable std::mutex mutex_;
  bool fired_ = false;
  std::set<grpc::ClientContext*> contexts_;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_INTERRUPT_H_
