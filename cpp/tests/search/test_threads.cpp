/// Threads that plan the same windows at the same time find the same plan.
#include <array>
#include <thread>
#include <vector>

#include "check.hpp"
#include "dynapipe/search/find_plan.hpp"
#include "plan_problem.hpp"

int main() {
    const plan_problem::Problem problem(1);
    const std::vector<double> slowness{1.0, 1.5};
    std::vector<std::vector<dynapipe::FoundPlan>> found(4);
    std::vector<std::thread> threads;
    for (std::vector<dynapipe::FoundPlan>& plans : found) {
        threads.emplace_back([&] {
            dynapipe::ReplicaSimulator simulator = problem.simulator(true);
            plans = dynapipe::find_plans(std::array{&simulator}, slowness, 12'500, 1).front();
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const std::vector<dynapipe::FoundPlan>& plans : found) {
        CHECK(plan_problem::holds_every_sample_once(plans.back().replicas));
        CHECK(plans.back().replicas == found.front().back().replicas);
    }
    return check::finish();
}
