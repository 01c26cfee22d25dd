// Makes Ctrl-C cancel the running calls instead of ending the process.
#ifndef LSSAR_CLIENTS_CLI_INTERRUPT_H_
#define LSSAR_CLIENTS_CLI_INTERRUPT_H_

#include <mutex>
#include <set>

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace lssar::cli {

// While an Interrupt exists, SIGINT cancels the calls it watches. A second SIGINT, or one while
// no Interrupt exists, ends the process as usual.
class Interrupt {
 public:
  // Starts a thread that receives SIGINT.
  // Requires  called in main before any other thread starts
  static void Start();

  // Requires  no other Interrupt exists
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool Fired() const;

  // Cancels the watched calls, as the first SIGINT does.
  // Threads  any
  void Fire();

  // Watches `context` from construction to destruction. After Fire it is cancelled at once.
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
