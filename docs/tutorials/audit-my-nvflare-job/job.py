"""Federated averaging over five sites in NVFlare's simulator; all that fedpriv adds are the two lines marked."""

import os

from hospital import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

import fedpriv.nvflare

if __name__ == "__main__":
    recipe = FedAvgRecipe(
        name="hospitals",
        model=Net(),
        min_clients=5,
        num_rounds=2,
        train_script="client.py",
        train_args=f"--data {os.path.abspath('data')}",
    )
    recipe.add_server_input_filter(fedpriv.nvflare.Record("runs/mine"), tasks=["train"])  # what clients upload
    recipe.add_server_output_filter(fedpriv.nvflare.Record("runs/mine"), tasks=["train"])  # what they are sent
    recipe.execute(SimEnv(num_clients=5, workspace_root=os.path.abspath("workspace")))
